# SPDX-License-Identifier: Apache-2.0
"""The engine's loop in virtual time: order within a step, what steps cost, failures, control between steps.

A script plays the server's part on the other end of the socket pair: it reacts to the core's calls, so that every
command arrives at a known point of a known step.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_support import HASHER, PROFILE, ScriptedCore, VirtualClock, scripted_engine, submission, write_tables

from slacktier.errors import TierUnavailableError
from slacktier_emulated import channel
from slacktier_emulated.channel import FrameKind, FrameReader
from slacktier_emulated.engine import Engine
from slacktier_emulated.engine_loop import EngineLoop
from slacktier_emulated.link import Link
from slacktier_emulated.recording import LookupRecorder
from slacktier_emulated.scheduler import Finish, Phase
from slacktier_emulated.step import LayerRecord, StepRecord

READ_ERROR = TierUnavailableError("disk gone", tier="nvme", operation="read", target="/a", errno=5)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    return write_tables(tmp_path_factory.mktemp("tables"))


@dataclass
class Bench:
    """An engine, its loop, and the server's end of the link."""

    engine: Engine
    core: ScriptedCore
    server: socket.socket
    loop: EngineLoop
    reader: FrameReader = field(default_factory=FrameReader)
    frames: list[tuple[FrameKind, Any]] = field(default_factory=list)
    begun: int = 0

    def send(self, message: bytes) -> None:
        self.server.sendall(message)

    def call(self, call_id: int, method: str, params: dict[str, Any] | None = None) -> None:
        self.send(channel.json_frame(FrameKind.CALL, {"id": call_id, "method": method, "params": params or {}}))

    def run(self, script: dict[int, Callable[[], None]], *, steps: int) -> None:
        """Run the loop; script[n] is played when step n begins (1 is the first), and the loop ends after `steps`."""

        def on_call(call: str) -> None:
            if call == "begin":
                self.begun += 1
                script.get(self.begun, lambda: None)()
                if self.begun == steps:
                    self.send(channel.frame(FrameKind.STOP))

        self.core.on_call = on_call
        self.loop.run()
        self.collect()

    def collect(self) -> None:
        self.server.setblocking(False)
        try:
            while chunk := self.server.recv(1 << 20):
                for kind, payload in self.reader.feed(chunk):
                    content = channel.decode_step(payload) if kind is FrameKind.STEP else json.loads(payload)
                    self.frames.append((kind, content))
        except BlockingIOError:
            pass

    def of(self, kind: FrameKind) -> list[Any]:
        return [content for found, content in self.frames if found is kind]

    def tokens(self, request_id: int) -> list[int]:
        return [
            token
            for outputs in self.of(FrameKind.STEP)
            for found, token, finish in zip(outputs.request_ids, outputs.tokens, outputs.finishes, strict=True)
            if found == request_id and finish != Finish.CANCELLED
        ]


@pytest.fixture
def bench(tables: dict[int, Path]) -> Iterator[Bench]:
    core = ScriptedCore(VirtualClock())
    engine = scripted_engine(core, tables)
    engine.warm_up()
    core.calls.clear()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Bench(engine, core, ours, EngineLoop(engine, Link(theirs), core.clock, probe_s=0.01))


def test_step_costs_compute_and_stalls_and_nothing_of_python(bench: Bench) -> None:
    bench.core.arrivals_us = [350.0, 400.0]
    bench.core.clock.wakes_late_us = 120.0
    bench.send(channel.encode_submit(submission(1, answer=41)))
    bench.run({}, steps=41)
    report = bench.engine.report(reset=False)
    assert report["steps"] == 40
    # Layer 1 is late by 350 - 100 us; layer 14 then has 500 + 250 us and is in time. Every wake-up is late by 120 us,
    # and every step gives that back to the next, so the mean is exact.
    assert report["layers"][0]["stall_ms"]["mean"] == pytest.approx(0.25)
    assert report["layers"][1]["stall_ms"]["mean"] == 0.0
    assert report["step_ms"]["mean"] == pytest.approx(PROFILE.points[0].step_ms + 0.25, abs=0.005)


def test_stall_of_the_host_is_given_back_within_bounds(bench: Bench) -> None:
    step_ms = PROFILE.points[0].step_ms
    bench.send(channel.encode_submit(submission(1, answer=41)))
    bench.run({5: lambda: bench.core.clock.spend(3 * step_ms * 1000)}, steps=41)
    report = bench.engine.report(reset=True)
    assert report["step_ms"]["mean"] == pytest.approx(step_ms, abs=0.01)
    assert report["step_ms"]["max"] == pytest.approx(3.25 * step_ms, abs=0.5)
    assert report["lost_ms"] == 0.0


def test_stall_of_the_host_beyond_four_steps_is_lost_and_told(bench: Bench) -> None:
    step_ms = PROFILE.points[0].step_ms
    bench.send(channel.encode_submit(submission(1, answer=41)))
    bench.run({5: lambda: bench.core.clock.spend(20 * step_ms * 1000)}, steps=41)
    report = bench.engine.report(reset=True)
    assert report["lost_ms"] == pytest.approx(15 * step_ms + 0.5, abs=1.0)
    assert report["step_ms"]["mean"] == pytest.approx(step_ms + report["lost_ms"] / 40, abs=0.01)


def test_tokens_leave_when_the_next_step_has_begun_and_are_the_recorded_ones(bench: Bench) -> None:
    request = submission(1, answer=6)
    bench.send(channel.encode_submit(request))
    bench.run({}, steps=6)
    assert bench.tokens(1) == request.answer.tolist()
    assert [len(outputs.tokens) for outputs in bench.of(FrameKind.STEP)] == [0, 1, 1, 1, 1, 1, 1]
    assert bench.of(FrameKind.STEP)[0].started_ids == [1]


def test_all_sequences_of_a_step_are_looked_up_at_once(bench: Bench) -> None:
    requests = [submission(request_id, answer=3) for request_id in (1, 2, 3)]
    for request in requests:
        bench.send(channel.encode_submit(request))
    bench.run({}, steps=3)
    expected = HASHER.step(np.array([[*r.prompt[-2:], *r.answer[:2]] for r in requests], np.int64))
    for index, ids in enumerate(bench.core.ids):
        assert ids.tolist() == expected[:, index].reshape(-1).tolist()


def test_cut_off_client_frees_its_slot_within_two_steps(bench: Bench) -> None:
    for request_id in (1, 2):
        bench.send(channel.encode_submit(submission(request_id, answer=50)))
    running: list[int] = []
    script = {5: lambda: bench.send(channel.encode_cancel(1))}
    script |= {n: lambda: running.append(bench.engine.scheduler.running_count) for n in (6, 7)}
    bench.run(script, steps=10)
    assert running == [1, 1]
    assert len(bench.tokens(1)) <= 5
    assert bench.tokens(2) == submission(2, answer=50).answer[:10].tolist()


def test_failed_lookup_ends_the_steps_requests_with_an_error_and_no_token(bench: Bench) -> None:
    bench.send(channel.encode_submit(submission(1, answer=9)))
    script = {4: lambda: bench.core.faults.update({1: READ_ERROR})}
    script[5] = lambda: bench.send(channel.frame(FrameKind.STOP))  # the probe's lookup
    bench.run(script, steps=99)
    assert bench.tokens(1) == submission(1, answer=9).answer[:3].tolist()
    (failed,) = bench.of(FrameKind.FAILED)
    assert failed["request_ids"] == [1]
    assert "layer 14: disk gone" in failed["message"]
    (health,) = bench.of(FrameKind.HEALTH)
    assert health["ready"] is False
    assert bench.engine.report(reset=False)["failed_steps"] == 1
    assert bench.engine.metrics.failures == {(14, "TierUnavailableErrno5"): 1}


def test_engine_is_ready_again_when_a_later_lookup_works(bench: Bench) -> None:
    bench.send(channel.encode_submit(submission(1)))

    def repair() -> None:  # step 3 is the probe
        bench.core.faults.clear()
        bench.send(channel.encode_submit(submission(2)))

    bench.run({2: lambda: bench.core.faults.update({0: READ_ERROR}), 3: repair}, steps=6)
    assert [health["ready"] for health in bench.of(FrameKind.HEALTH)] == [False, True]
    assert bench.tokens(2) == submission(2).answer[: len(bench.tokens(2))].tolist() != []


def test_wrong_bytes_are_never_answered_with_a_token(bench: Bench) -> None:
    bench.send(channel.encode_submit(submission(1)))
    script = {3: lambda: setattr(bench.core, "wrong_row", 0), 4: lambda: bench.send(channel.frame(FrameKind.STOP))}
    bench.run(script, steps=99)
    assert len(bench.tokens(1)) == 2
    report = bench.engine.report(reset=False)
    assert (report["mismatched_rows"], report["failed_steps"]) == (2, 1)
    assert len(bench.of(FrameKind.FAILED)) == 1


def test_control_applies_between_two_steps_and_costs_them_no_time(bench: Bench) -> None:
    bench.send(channel.encode_submit(submission(1, answer=10)))
    change = {"layers": [{"layer_id": 14, "tier": "dram", "cache_rows": 9}], "profile": {"step_ms": 4.0}}
    bench.core.switch_us = 700_000.0  # loading a table takes a while
    bench.run({3: lambda: bench.call(8, "control", change)}, steps=10)
    (reply,) = bench.of(FrameKind.REPLY)
    assert reply["result"]["layers"][1]["tier"] == "dram"
    calls = bench.core.calls
    at = calls.index("sources 1 dram")
    assert (calls[at - 1], calls[at + 1 : at + 3]) == ("end", ["cache 1 9", "begin"])
    report = bench.engine.report(reset=False)
    assert report["step_ms"]["max"] == pytest.approx(4.0, abs=0.01)
    assert report["layers"][1]["tier"] == "dram"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"layers": [{"layer_id": 3, "cache_rows": 1}]}, "expected one of 1, 14"),
        ({"layers": [{"layer_id": 1, "cache_rows": 7}, {"layer_id": 14, "tier": "nvme", "paths": ["/no"]}]}, "/no"),
        ({"layers": [{"layer_id": 1, "cache_rows": 7}], "profile": {"windows_ms": {"3": 1.0}}}, "layer 3"),
        ({"layers": [{"layer_id": 1, "cache_rows": 7, "typo": 1}]}, "typo"),
    ],
)
def test_control_that_is_wrong_anywhere_changes_nothing(bench: Bench, change: dict[str, Any], complaint: str) -> None:
    bench.send(channel.encode_submit(submission(1, answer=5)))
    before = bench.engine.status()["layers"]
    bench.run({2: lambda: bench.call(8, "control", change)}, steps=5)
    (reply,) = bench.of(FrameKind.REPLY)
    assert reply["error"]["kind"] == "config"
    assert complaint in reply["error"]["message"]
    assert bench.engine.status()["layers"] == before
    assert not [call for call in bench.core.calls if call.startswith(("cache", "sources"))]


def test_control_that_fails_halfway_is_taken_back(bench: Bench) -> None:
    bench.send(channel.encode_submit(submission(1, answer=5)))
    change = {"layers": [{"layer_id": 1, "tier": "dram"}, {"layer_id": 14, "tier": "dram"}]}
    bench.core.refuses_sources = {1: READ_ERROR}
    bench.run({2: lambda: bench.call(8, "control", change)}, steps=5)
    (reply,) = bench.of(FrameKind.REPLY)
    assert reply["error"] == {"kind": "fault", "message": "disk gone", "hint": ""}
    assert [layer["tier"] for layer in bench.engine.status()["layers"]] == ["nvme", "nvme"]
    assert [call for call in bench.core.calls if call.startswith("sources")] == [
        "sources 0 dram", "sources 1 dram", "sources 0 nvme",
    ]  # fmt: skip


def test_table_with_other_bytes_is_not_switched_to(bench: Bench, tmp_path: Path) -> None:
    other = write_tables(tmp_path, seed=8)
    bench.send(channel.encode_submit(submission(1, answer=5)))
    change = {"layers": [{"layer_id": 1, "tier": "nvme", "paths": [str(other[1])]}]}
    bench.run({2: lambda: bench.call(8, "control", change)}, steps=5)
    assert "another table" in bench.of(FrameKind.REPLY)[0]["error"]["message"]


def test_report_starts_anew_after_a_reset(bench: Bench) -> None:
    bench.send(channel.encode_submit(submission(1, answer=12)))
    script = {6: lambda: bench.call(1, "report", {"reset": True}), 9: lambda: bench.call(2, "report")}
    bench.run(script, steps=12)
    first, second = (reply["result"] for reply in bench.of(FrameKind.REPLY))
    assert (first["prefill"]["steps"], first["steps"], first["first_step"], first["end_step"]) == (1, 4, 0, 5)
    assert (second["prefill"]["steps"], second["steps"], second["first_step"]) == (0, 3, 5)
    assert first["rows_checked"] == (10 + 4) * 48
    assert second["rows_checked"] == 3 * 48


def test_recording_holds_what_was_looked_up_step_by_step(tables: dict[int, Path], tmp_path: Path) -> None:
    core = ScriptedCore(VirtualClock())
    recorder = LookupRecorder(tmp_path / "lookups.npz", 20 * 48 + 1, (1, 14), rank=0, tp=1)
    engine = scripted_engine(core, tables, recorder=recorder)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        bench = Bench(engine, core, ours, EngineLoop(engine, Link(theirs), core.clock, probe_s=0.01))
        request = submission(1, prompt=10, answer=30)
        bench.send(channel.encode_submit(request))
        bench.run({}, steps=15)
    recorder.save()
    expected = HASHER.sequence(np.concatenate([request.prompt, request.answer]))
    with np.load(tmp_path / "lookups.npz", allow_pickle=False) as found:
        assert found["step_is_prefill"].tolist() == [1] + [0] * 10
        assert found["offsets_14"].tolist() == [0, *range(240, 240 + 11 * 24, 24)]
        assert found["rows_1"].tolist() == expected[:20, 0].reshape(-1).tolist()
        assert found["rows_14"].tolist() == expected[:20, 1].reshape(-1).tolist()
        assert found["hits_1"].tolist() == [0] * 11
        assert (int(found["rank"]), int(found["tp"])) == (0, 1)
    assert engine.status()["recording"]["limit_reached"] is True


def test_recording_keeps_only_the_rows_of_its_rank(tmp_path: Path) -> None:
    recorder = LookupRecorder(tmp_path / "x.npz", 100, (1,), rank=1, tp=4)
    layer = LayerRecord(window_us=1, read_us=1, stall_us=0, owned=2, hits=1, repeats=0, misses=1, pages=1, checked=2)
    recorder.add(3, Phase.DECODE, [np.arange(8)], StepRecord(0, 1, 1, (layer,)), [5])
    recorder.save()
    with np.load(tmp_path / "x.npz", allow_pickle=False) as found:
        assert found["rows_1"].tolist() == [1, 5]
        assert (found["cache_rows_1"].tolist(), found["step_number"].tolist()) == ([5], [3])
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]


def test_idle_engine_ends_when_the_server_is_gone(bench: Bench) -> None:
    bench.server.close()
    bench.loop.run()
