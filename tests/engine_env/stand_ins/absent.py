# SPDX-License-Identifier: Apache-2.0
"""Placeholders for packages that SGLang imports and its CPU path hardly calls: importable, an error when used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Filler = Callable[[ModuleType], None]


class Placeholder(type):
    """A class that may be imported, subclassed and looked into, but not called."""

    def __getattr__(cls, name: str) -> Placeholder:
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder(f"{cls.__name__}.{name}", (), {})

    def __call__(cls, *args: object, **kwargs: object) -> object:
        raise RuntimeError(f"{cls.__name__} is a placeholder: SGLang's CPU path was not expected to call it")


class PlaceholderModule(ModuleType):
    __version__ = "0"

    def __getattr__(self, name: str) -> Placeholder:
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder(f"{self.__name__}.{name}", (), {})


class AbsentPackages(MetaPathFinder, Loader):
    """fillers: module name -> what puts the few real members into the placeholder."""

    def __init__(self, names: tuple[str, ...], fillers: dict[str, Filler]) -> None:
        self.names = names
        self.fillers = fillers

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] in self.names else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return PlaceholderModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ in self.fillers:
            self.fillers[module.__name__](module)


def stand_in_for(*names: str, fillers: dict[str, Filler] | None = None) -> None:
    """Importing any of these packages, or a module below one, gives placeholders from now on."""
    sys.meta_path.append(AbsentPackages(names, fillers or {}))
