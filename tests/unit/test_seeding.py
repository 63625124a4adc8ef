# SPDX-License-Identifier: Apache-2.0
"""A request's rows from prefill to decode instance: fewer first-step misses, never another row, never late."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pattern_regions import ROWS, SEEDS, superblock, write_region

from slacktier.errors import ConfigError, ContractError, TierUnavailableError
from slacktier.tiers import Tier
from slacktier_native import row_handshake
from slacktier_native.core import LayerResult, LayerSetup, LookupCore, SourceSpec
from slacktier_native.pages import pattern_check
from slacktier_seeding import wire
from slacktier_seeding.client import pull
from slacktier_seeding.seeder import SeedAddress, Seeder
from slacktier_seeding.server import SeedServer
from slacktier_seeding.store import SeedStore

TOKEN = b"0123456789abcdef0123456789abcdef"
ROOM = (1 << 62) + 5
LAYERS = tuple(SEEDS)
SUPERBLOCKS = {layer_id: superblock(layer_id) for layer_id in SEEDS}
RECORD_BYTES = SUPERBLOCKS[LAYERS[0]].record_bytes
PROMPT = np.random.default_rng(0).integers(-1, ROWS, 600)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def open_core(directory: Path, cache_rows: int = 20 * ROWS, host_cache_bytes: int = 0) -> LookupCore:
    paths = {i: directory / f"layer{i}" for i in SEEDS}
    for i, path in paths.items():
        if not path.exists():
            write_region(path, superblock(i), SEEDS[i])
    layers = [
        LayerSetup(i, (SourceSpec(Tier.NVME, (path,)),), cache_rows, host_cache_bytes) for i, path in paths.items()
    ]
    return LookupCore(layers, lookups_max=4096)


def look_up(core: LookupCore, ids: np.ndarray) -> tuple[list[LayerResult], list[np.ndarray]]:
    """One step of the same ids on every layer; every row must be the pattern's."""
    core.begin([ids] * len(LAYERS))
    results, rows = [], []
    for index, layer_id in enumerate(LAYERS):
        results.append(core.wait(index))
        rows.append(np.empty((ids.size, core.row_bytes(index)), np.uint8))
        core.gather(index, rows[-1])
        assert pattern_check(SEEDS[layer_id], ids, rows[-1], 256, 8) == (0, -1)
    core.end()
    return results, rows


def new_store(bytes_max: int = 1 << 24, keep_s: float = 30.0, clock: Clock | None = None) -> SeedStore:
    return SeedStore(SUPERBLOCKS, bytes_max=bytes_max, keep_s=keep_s, now_s=clock or time.monotonic)


@pytest.fixture
def store(tmp_path: Path) -> SeedStore:
    """Of a prefill instance that has looked up PROMPT in two chunks, the second of which repeats some rows."""
    kept = new_store()
    with open_core(tmp_path) as prefill:
        for chunk in (PROMPT[:400], PROMPT[300:]):
            _, rows = look_up(prefill, chunk)
            for layer_id, layer_rows in zip(LAYERS, rows, strict=True):
                kept.keep(ROOM, layer_id, chunk, layer_rows)
    return kept


@pytest.fixture
def server(store: SeedStore) -> Iterator[SeedServer]:
    with SeedServer(store, TOKEN, timeout_s=0.5) as opened:
        yield opened


def address(server: SeedServer, token: bytes = TOKEN) -> SeedAddress:
    return SeedAddress(*server.address, token)


def soon() -> float:
    return time.monotonic() + 2.0


@pytest.mark.parametrize(("cache_rows", "host_bytes"), [(20 * ROWS, 0), (0, 1 << 22)], ids=["cache", "second level"])
def test_seeded_request_misses_nothing_in_its_first_step(
    tmp_path: Path, server: SeedServer, cache_rows: int, host_bytes: int
) -> None:
    with open_core(tmp_path, cache_rows, host_bytes) as decode:
        seeder = Seeder(decode, limit_s=2.0)
        seed = seeder.pull(address(server), ROOM, [PROMPT] * len(LAYERS))
        distinct = np.unique(PROMPT[PROMPT >= 0]).size
        assert seeder.fill(seed) == distinct * len(LAYERS) == seeder.rows_asked
        results, _ = look_up(decode, PROMPT)
        assert [result.pages for result in results] == [0] * len(LAYERS)
        seeder.close()
    with open_core(tmp_path, cache_rows, host_bytes) as unseeded:
        results, _ = look_up(unseeded, PROMPT)
        assert all(result.pages > 0 for result in results)


def test_decode_side_gets_the_rows_that_are_there_and_the_tier_has_the_rest(tmp_path: Path, server: SeedServer) -> None:
    absent = np.setdiff1d(np.arange(ROWS), PROMPT)[:50]
    asked = np.concatenate([absent, PROMPT[:100]])
    with open_core(tmp_path) as decode:
        seeder = Seeder(decode, limit_s=2.0)
        seeder.fill(seeder.pull(address(server), ROOM, [asked] * len(LAYERS)))
        results, _ = look_up(decode, asked)
        assert [result.misses for result in results] == [absent.size] * len(LAYERS)
        seeder.close()


def test_rows_are_given_once(server: SeedServer, store: SeedStore) -> None:
    layer = SUPERBLOCKS[LAYERS[0]]
    first = pull(server.address, TOKEN, layer, ROOM, PROMPT, deadline_s=soon())
    assert np.array_equal(first.row_ids, np.unique(PROMPT[PROMPT >= 0]))
    assert pull(server.address, TOKEN, layer, ROOM, PROMPT, deadline_s=soon()).row_ids.size == 0
    for layer_id in LAYERS[1:]:
        store.take(ROOM, layer_id)
    assert (store.byte_count, store.room_count) == (0, 0)


def test_one_damaged_record_refuses_the_whole_seed(tmp_path: Path, server: SeedServer) -> None:
    layer = SUPERBLOCKS[LAYERS[0]]
    pulled = pull(server.address, TOKEN, layer, ROOM, PROMPT, deadline_s=soon())
    swapped = pulled.records.copy()
    swapped[[3, 4]] = swapped[[4, 3]]
    flipped = pulled.records.copy()
    flipped[7, 100] ^= 1
    with open_core(tmp_path) as decode:
        for bad, row in ((swapped, 3), (flipped, 7)):
            with pytest.raises(ContractError, match=f"row {pulled.row_ids[row]} is not what it says"):
                decode.seed(0, pulled.sent, pulled.row_ids, bad)
        results, _ = look_up(decode, PROMPT)
        assert results[0].hits == 0


def test_rows_of_another_table_layer_or_epoch_are_refused(tmp_path: Path, server: SeedServer) -> None:
    pulled = pull(server.address, TOKEN, SUPERBLOCKS[LAYERS[0]], ROOM, PROMPT, deadline_s=soon())
    with open_core(tmp_path) as decode:
        with pytest.raises(ContractError, match="not the one served"):
            decode.seed(1, pulled.sent, pulled.row_ids, pulled.records)
        with pytest.raises(ContractError, match="is not what it says"):
            decode.seed(0, replace(pulled.sent, epoch=pulled.sent.epoch + 1), pulled.row_ids, pulled.records)
        with pytest.raises(ContractError, match="bytes for"):
            decode.seed(0, pulled.sent, pulled.row_ids[1:], pulled.records)


def test_rows_that_another_rank_owns_are_passed_over(tmp_path: Path, server: SeedServer) -> None:
    pulled = pull(server.address, TOKEN, SUPERBLOCKS[LAYERS[0]], ROOM, PROMPT, deadline_s=soon())
    path = write_region(tmp_path / "again", superblock(LAYERS[0]), SEEDS[LAYERS[0]])
    setup = LayerSetup(LAYERS[0], (SourceSpec(Tier.NVME, (path,)),), 20 * ROWS)
    with LookupCore([setup], rank=1, tp=2, lookups_max=4096) as decode:
        assert decode.seed(0, pulled.sent, pulled.row_ids, pulled.records) == (pulled.row_ids % 2 == 1).sum()


def test_seed_waits_for_the_step_that_is_open(tmp_path: Path, server: SeedServer) -> None:
    pulled = pull(server.address, TOKEN, SUPERBLOCKS[LAYERS[0]], ROOM, PROMPT, deadline_s=soon())
    with open_core(tmp_path) as decode:
        decode.begin([PROMPT] * len(LAYERS))
        with pytest.raises(ConfigError, match="busy"):
            decode.seed(0, pulled.sent, pulled.row_ids, pulled.records)
        decode.end()


def test_prefill_server_that_is_gone_leaves_the_tier_to_answer(tmp_path: Path, server: SeedServer) -> None:
    at = address(server)
    server.close()
    with open_core(tmp_path) as decode:
        seeder = Seeder(decode, limit_s=2.0)
        seed = seeder.pull(at, ROOM, [PROMPT] * len(LAYERS))
        assert set(seed.faults) == set(LAYERS)
        assert seeder.fill(seed) == 0
        look_up(decode, PROMPT)
        assert seeder.fault_counts == {"TierUnavailable": len(LAYERS)}
        seeder.close()


def test_silent_server_holds_a_request_no_longer_than_the_limit(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, open_core(tmp_path) as decode:
        seeder = Seeder(decode, limit_s=0.1)
        seed = seeder.pull(SeedAddress(*silent.getsockname(), TOKEN), ROOM, [PROMPT] * len(LAYERS))
        assert set(seed.faults) == set(LAYERS)
        assert 0.1 <= seed.seconds < 0.6  # a busy machine
        seeder.close()


def test_wrong_token_and_unknown_table_are_refused(server: SeedServer) -> None:
    layer = SUPERBLOCKS[LAYERS[0]]
    with pytest.raises(TierUnavailableError, match="wrong token"):
        pull(server.address, TOKEN[::-1], layer, ROOM, PROMPT, deadline_s=soon())
    with pytest.raises(TierUnavailableError, match="no such table"):
        pull(server.address, TOKEN, replace(layer, layer_id=99), ROOM, PROMPT, deadline_s=soon())


def test_room_is_forgotten_when_its_time_is_over(store: SeedStore) -> None:
    clock = Clock()
    timed = new_store(keep_s=5.0, clock=clock)
    rows = np.zeros((3, 264), np.uint8)
    assert timed.keep(1, LAYERS[0], np.arange(3), rows) == 3
    clock.now_s += 4.9
    assert timed.keep(2, LAYERS[0], np.arange(3), rows) == 3
    clock.now_s += 0.2
    assert timed.take(1, LAYERS[0])[0].size == 0
    assert timed.take(2, LAYERS[0])[0].tolist() == [0, 1, 2]
    assert timed.counts.rooms_expired == 1
    assert timed.byte_count == 0


def test_oldest_room_goes_first_and_one_room_never_exceeds_the_bytes() -> None:
    small = new_store(bytes_max=10 * RECORD_BYTES)
    rows = np.zeros((20, 264), np.uint8)
    assert small.keep(1, LAYERS[0], np.arange(6), rows[:6]) == 6
    assert small.keep(2, LAYERS[0], np.arange(6), rows[:6]) == 6
    assert small.take(1, LAYERS[0])[0].size == 0
    assert small.keep(3, LAYERS[0], np.arange(20), rows) == 10
    assert small.byte_count == 10 * RECORD_BYTES
    assert (small.counts.rooms_evicted, small.counts.rows_refused) == (2, 10)
    small.forget(3)
    assert (small.byte_count, small.room_count) == (0, 0)


def test_many_decode_instances_pull_at_once(store: SeedStore, server: SeedServer) -> None:
    layer, rows = SUPERBLOCKS[LAYERS[0]], np.zeros((100, 264), np.uint8)
    for room in range(20):
        store.keep(room, LAYERS[0], np.arange(room, room + 100), rows)
    got: dict[int, int] = {}

    def run(room: int) -> None:
        got[room] = int(pull(server.address, TOKEN, layer, room, np.arange(300), deadline_s=soon()).row_ids[0])

    threads = [threading.Thread(target=run, args=(room,)) for room in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {room: room for room in range(20)}


def header(count: int, crc: int, magic: int = wire.REQUEST_MAGIC) -> bytes:
    return wire.REQUEST.pack(magic, count, ROOM, crc, 0)


GOOD = np.array([1, 2, 3], np.uint32)
UNSORTED = np.array([3, 2, 1], np.uint32)


@pytest.mark.parametrize(
    "request_bytes",
    [
        header(3, wire.ids_crc(GOOD), magic=0x51524C53) + GOOD.tobytes(),
        header(0, 0),
        header(wire.ROWS_MAX + 1, 0),
        header(3, wire.ids_crc(GOOD) ^ 1) + GOOD.tobytes(),
        header(3, wire.ids_crc(UNSORTED)) + UNSORTED.tobytes(),
        header(3, wire.ids_crc(GOOD)) + GOOD.tobytes()[:5],
    ],
    ids=["magic", "no ids", "too many ids", "checksum", "order", "cut off"],
)
def test_broken_request_gets_no_rows_and_others_go_on(server: SeedServer, request_bytes: bytes) -> None:
    layer = SUPERBLOCKS[LAYERS[0]]
    with socket.create_connection(server.address, timeout=2.0) as sock:
        row_handshake.connect_session(
            sock, TOKEN, layer.table_uuid, layer.layer_id, "test", row_handshake.SEED_MAGIC, timeout_s=2.0
        )
        sock.sendall(request_bytes)
        answer = b""
        with contextlib.suppress(OSError):  # the server may have closed with bytes unread: a reset, no connection
            sock.shutdown(socket.SHUT_WR)
            while part := sock.recv(4096):
                answer += part
        assert answer in (b"", wire.REPLY.pack(wire.REPLY_MAGIC, errno.EPROTO, ROOM, 0, 0))
    pulled = pull(server.address, TOKEN, layer, ROOM, PROMPT, deadline_s=soon())
    assert pulled.row_ids.size == np.unique(PROMPT[PROMPT >= 0]).size
