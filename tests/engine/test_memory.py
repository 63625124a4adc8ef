# SPDX-License-Identifier: Apache-2.0
"""A table of 4 GiB: with the plugin it is not in the server's memory, and starting the server reads nothing of it.

Goal: what the plugin is for. Method: both servers load the same checkpoint, one after the other; the memory of their
processes is compared, and which pages of the table's files lie in the page cache after a start with cold files. Opening
a file brings some, its header's and each tensor's first, with what the kernel reads ahead: no start may bring more.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import material
import pytest
from conftest import Fleet, Plugin
from engine_process import RELEASES, environment, python
from material import LAYERS, tables
from memory import cached_bytes, forget, proportional_bytes
from workload import ask, prompts

TABLE_BYTES: Final = 4 << 30
GONE_MIN: Final = 0.95
# What the engine's loader does with each file before it hands the tensors to the model.
OPEN: Final = """
import sys, safetensors
with safetensors.safe_open(sys.argv[1], framework="pt", device="cpu") as file:
    tensors = [file.get_tensor(name) for name in file.keys()]
"""
FREE_BYTES_MIN: Final = 10 << 30
# Of the memory that is free at the start; the usual share is less than the table. --max-total-tokens bounds the rest.
ROOM: Final = ("--mem-fraction-static", "0.6")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The checkpoint; with its regions it takes 8.5 GiB, so it is not kept."""
    free = shutil.disk_usage(material.ROOT).free
    assert free > FREE_BYTES_MIN, f"{free >> 30} GiB free, the checkpoint and its regions need {FREE_BYTES_MIN >> 30}"
    checkpoint = material.engram_checkpoint(TABLE_BYTES)
    yield checkpoint
    shutil.rmtree(checkpoint.parent)


@pytest.mark.full
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("release", RELEASES)
def test_table_is_in_nobodys_memory_and_start_up_reads_nothing_of_it(
    release: str, large: Path, plugin: Plugin, tmp_path: Path
) -> None:
    fleet = Fleet({"engram": large}, plugin, tmp_path)
    files = {layer: large / f"engram-{layer}.safetensors" for layer in LAYERS["engram"]}
    table_bytes = sum(path.stat().st_size for path in files.values())
    regions = {layer: [material.stage(large, layer, tmp_path / f"{layer}.region")] for layer in files}
    asked = prompts(4, seed=3)
    with fleet.stock(release, "engram", flags=ROOM) as server:
        expected = [ask(server, prompt) for prompt in asked]
        stock_bytes = proportional_bytes(server)
    opened = {layer: bytes_of_opening(path) for layer, path in files.items()}
    for path in files.values():
        forget(path)
    unchecked = {"check": {"checkpoint": "none"}}
    with fleet.tiered(release, "engram", tables(regions), settings=unchecked, flags=ROOM) as server:
        read = {layer: cached_bytes(path) for layer, path in files.items()}
        found = [ask(server, prompt) for prompt in asked]
        tiered_bytes = proportional_bytes(server)
    gone = (stock_bytes - tiered_bytes) / table_bytes
    print(f"\n{release}: table {table_bytes >> 20} MiB, stock {stock_bytes >> 20} MiB, plugin {tiered_bytes >> 20} MiB")
    print(f"{gone:.1%} of the table gone; read of its files at start-up, {read}; opening them: {opened}")
    assert found == expected
    assert gone >= GONE_MIN
    assert all(read[layer] <= opened[layer] for layer in files)
    assert sum(opened.values()) < table_bytes * (1 - GONE_MIN)


def bytes_of_opening(path: Path) -> int:
    forget(path)
    material.run([python(), "-c", OPEN, path], environment(RELEASES[-1]))
    return cached_bytes(path)
