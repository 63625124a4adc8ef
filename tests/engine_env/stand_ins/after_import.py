# SPDX-License-Identifier: Apache-2.0
"""Sets members of a module right after it is first imported, for the flags that SGLang computes from the machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class _Then(Loader):
    """The module's own loader, and what comes after it."""

    def __init__(self, own: Loader, members: dict[str, Any]) -> None:
        self.own = own
        self.members = members

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.own.exec_module(module)
        for path, value in self.members.items():
            *parents, name = path.split(".")
            owner: Any = module
            for parent in parents:
                owner = getattr(owner, parent)
            # A release that renamed it would otherwise be left as it is, in silence.
            if not hasattr(owner, name):
                raise ImportError(f"{module.__name__} has no {path}: this release wants another way")
            setattr(owner, name, value)


class AfterImport(MetaPathFinder):
    """changes: module -> member, dotted below a class -> its value."""

    def __init__(self, changes: dict[str, dict[str, Any]]) -> None:
        self.changes = changes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.changes:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader, self.changes[fullname])
        return spec


def after_import(changes: dict[str, dict[str, Any]]) -> None:
    sys.meta_path.insert(0, AfterImport(changes))
