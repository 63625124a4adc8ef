# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the level `engine`: checkpoints and regions once per run, and servers with and without the plugin.

`make test-engine-full` runs the whole matrix.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import material
import pytest
import workload
from material import LAYERS, Plugin, Reference
from servers import Server, ServerSpec, Shape, free_port, serving

REFERENCE_PROMPTS = 48


def pytest_configure() -> None:
    material.without_plugin_variables()


@pytest.fixture(scope="session")
def full(pytestconfig: pytest.Config) -> bool:
    return bool(pytestconfig.getoption("--full"))


@pytest.fixture(scope="session")
def reference() -> Reference:
    return qwen()[1]


def qwen() -> tuple[Path, Reference]:
    return material.qwen_checkpoint(workload.prompts(REFERENCE_PROMPTS, seed=1), workload.NEW_TOKENS)


@pytest.fixture(scope="session")
def checkpoints() -> dict[str, Path]:
    """Family -> checkpoint."""
    return {"engram": material.engram_checkpoint(), "qwen": qwen()[0]}


Regions = dict[int, list[Path]]


@pytest.fixture(scope="session")
def regions(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Regions]:
    """Family -> layer -> its region."""
    folder = tmp_path_factory.mktemp("regions")
    return {
        family: {layer: [material.stage(path, layer, folder / f"{family}-{layer}.region")] for layer in LAYERS[family]}
        for family, path in checkpoints.items()
    }


@pytest.fixture(scope="session")
def zero_regions(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Regions]:
    """The same tables, each row zeros."""
    folder = tmp_path_factory.mktemp("zeroed")
    found: dict[str, Regions] = {}
    for family, path in checkpoints.items():
        source = material.zeroed(path, folder / family)
        found[family] = {
            layer: [material.stage(source, layer, folder / f"{family}-{layer}.region")] for layer in LAYERS[family]
        }
    return found


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Plugin:
    return Plugin(tmp_path_factory.mktemp("site"))


USUAL = Shape()
FAULTS = Path(__file__).parent / "faults"


class Fleet:
    """Starts servers of one test; their logs lie in its own folder."""

    def __init__(self, checkpoints: dict[str, Path], plugin: Plugin, folder: Path) -> None:
        self.checkpoints = checkpoints
        self.plugin = plugin
        self.folder = folder
        self._count = 0

    def log(self) -> Path:
        self._count += 1
        return self.folder / f"server-{self._count}.log"

    def stock(
        self, release: str, family: str, shape: Shape = USUAL, *, ready: bool = True, flags: tuple[str, ...] = ()
    ) -> AbstractContextManager[Server]:
        spec = ServerSpec(release, family, self.checkpoints[family], shape, flags=flags)
        return serving(spec, self.log(), ready=ready)

    def tiered(
        self, release: str, family: str, tables: list[dict[str, Any]], shape: Shape = USUAL, *, ready: bool = True,
        settings: dict[str, Any] | None = None, variables: dict[str, str] | None = None, token: Path | None = None,
        flags: tuple[str, ...] = (),
    ) -> AbstractContextManager[Server]:  # fmt: skip
        """A server whose plugin has these tables, or none where tierd tells; control_port: its readiness endpoint's."""
        listen = {"host": "127.0.0.1", "port": free_port(), **({"token_file": str(token)} if token else {})}
        config = {**({"tables": tables} if tables else {}), "listen": listen, **(settings or {})}
        spec = ServerSpec(
            release, family, self.checkpoints[family], shape, (self.plugin.site, FAULTS),
            {"SLACKTIER_CONFIG": json.dumps(config), **(variables or {})}, flags,
        )  # fmt: skip
        return serving(spec, self.log(), ready=ready, control_port=listen["port"])


@pytest.fixture
def fleet(checkpoints: dict[str, Path], plugin: Plugin, tmp_path: Path) -> Fleet:
    return Fleet(checkpoints, plugin, tmp_path)
