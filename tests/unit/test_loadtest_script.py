# SPDX-License-Identifier: Apache-2.0
"""What a generator is told to send: requests' JSON, sessions by seed, users and arrivals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slacktier.errors import ConfigError
from slacktier_loadtest.scenario import Load, PrefillPhases, Scenario, WorkloadSpec
from slacktier_loadtest.script import BlockScript, RequestShape, SessionScript, TurnScript, message_json, payloads
from slacktier_loadtest.workload import TRACES_VARIABLE, prepare

SESSION = SessionScript("s", (TurnScript("1,2", "3", 4), TurnScript("5", "6,7", 2, 1.5)))
CONVERSATION = {
    "messages": [
        {"role": "user", "content": f"question {'and more ' * 40}"},
        {"role": "assistant", "content": "first answer, some words long"},
        {"role": "user", "content": "next question"},
        {"role": "assistant", "content": "second answer"},
    ]
}


def bodies(shape: RequestShape, session: SessionScript = SESSION) -> list[dict[str, Any]]:
    return [json.loads(payload) for _, payload in payloads(session, shape)]


def test_prompt_grows_by_recorded_answer_and_new_turn() -> None:
    first, second = bodies(RequestShape("prompt", "9", {"model": "m"}))
    assert first["prompt"] == [9, 1, 2]
    assert second["prompt"] == [9, 1, 2, 3, 5]
    assert (first["max_tokens"], second["max_tokens"]) == (4, 2)


def test_every_request_streams_and_asks_for_usage() -> None:
    for body in bodies(RequestShape("prompt", "", {"model": "m", "ignore_eos": True})):
        assert body["stream"] is True
        assert body["stream_options"] == {"include_usage": True}
        assert body["ignore_eos"] is True


def test_only_the_emulated_engine_is_asked_for_the_recorded_answer() -> None:
    assert "slacktier" not in bodies(RequestShape("prompt", "", {}))[0]
    replayed = bodies(RequestShape("prompt", "", {}, replays=True))
    assert replayed[1]["slacktier"] == {"output_token_ids": [6, 7]}


def test_chat_history_is_messages() -> None:
    session = SessionScript(
        "c",
        (
            TurnScript(message_json("user", "hé"), message_json("assistant", "a"), 3),
            TurnScript(message_json("user", "b"), "", 3),
        ),
    )
    shape = RequestShape("messages", message_json("system", "Run 1."), {"model": "m"})
    assert shape.path == "/v1/chat/completions"
    assert [each["role"] for each in bodies(shape, session)[1]["messages"]] == ["system", "user", "assistant", "user"]


def test_script_survives_the_way_to_the_generator() -> None:
    script = BlockScript(((SESSION,), ()), ("http://a:1",), RequestShape("prompt", "1", {"x": 1}), {"A": "b"}, 3.0)
    assert BlockScript.from_json(json.loads(json.dumps(script.as_json()))) == script
    assert script.request_count == 2


@pytest.fixture
def conversations(tmp_path: Path) -> Path:
    path = tmp_path / "talks.jsonl"
    path.write_text("".join(json.dumps(CONVERSATION) + "\n" for _ in range(6)))
    return path


def scenario(**changes: Any) -> Scenario:
    return Scenario(title="t", arms=("dram",), **{"load": Load(users=2), **changes})


def test_users_get_every_session_once_and_the_same_by_seed(conversations: Path) -> None:
    spec = scenario(workload=WorkloadSpec(sessions=6, turns_max=2, output_tokens=3))
    (phase,) = prepare(spec, conversations, seed=3, is_chat=False).phases
    names = [session.name for user in phase.users for session in user]
    assert len(phase.users) == 2
    assert len(set(names)) == 6
    assert prepare(spec, conversations, seed=3, is_chat=False).phases == (phase,)
    assert prepare(spec, conversations, seed=4, is_chat=False).phases != (phase,)


def test_turns_are_cut_to_their_limits(conversations: Path) -> None:
    limits = WorkloadSpec(sessions=1, turns_max=8, history_tokens=5, turn_tokens=4, output_tokens=2)
    (phase,) = prepare(scenario(workload=limits), conversations, seed=1, is_chat=False).phases
    first, second = phase.users[0][0].turns
    assert len(first.new.split(",")) == 5
    assert len(second.new.split(",")) == 4
    assert (first.max_tokens, len(first.answer.split(","))) == (2, 2)


def test_pauses_lie_in_their_range_and_not_before_the_first_turn(conversations: Path) -> None:
    spec = scenario(workload=WorkloadSpec(sessions=4), pause_s=(1, 6))
    (phase,) = prepare(spec, conversations, seed=1, is_chat=False).phases
    sessions = [session for user in phase.users for session in user]
    assert {session.turns[0].pause_s for session in sessions} == {0.0}
    later = [session.turns[1].pause_s for session in sessions]
    assert all(1 <= pause <= 6 for pause in later)
    assert len(set(later)) == 4


def test_open_loop_makes_a_user_of_each_session_that_arrives_in_its_time(conversations: Path) -> None:
    spec = scenario(workload=WorkloadSpec(sessions=200), load=Load(rate_per_s=10))
    (phase,) = prepare(spec, conversations, seed=1, is_chat=False).phases
    starts = [session.start_s for (session,) in phase.users]
    assert starts == sorted(starts)
    assert 15 < starts[-1] < 26  # 200 arrivals at 10 per second


def test_prefill_prompts_have_their_length_and_share_no_prefix(conversations: Path) -> None:
    phases = PrefillPhases(prompt_tokens=(16, 32), together=(1, 3), repeats=2)
    found = prepare(scenario(prefill=phases), conversations, seed=1, is_chat=False).phases
    assert [phase.name for phase in found] == [
        "16 tokens, 1 at a time", "16 tokens, 3 at a time", "32 tokens, 1 at a time", "32 tokens, 3 at a time",
    ]  # fmt: skip
    prompts = [session.turns[0].new for user in found[3].users for session in user]
    assert {len(prompt.split(",")) for prompt in prompts} == {32}
    assert len(set(prompts)) == 6


def test_chat_messages_hold_the_text_without_template_tokens(conversations: Path) -> None:
    spec = scenario(workload=WorkloadSpec(sessions=1, turns_max=1, output_tokens=50))
    (phase,) = prepare(spec, conversations, seed=1, is_chat=True).phases
    turn = phase.users[0][0].turns[0]
    assert json.loads(f"[{turn.answer}]") == [{"role": "assistant", "content": "first answer, some words long"}]
    assert json.loads(f"[{turn.new}]")[0]["content"].startswith("question and more")


def test_scenario_trace_that_is_not_in_the_directory_of_traces_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRACES_VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match="no such file"):
        prepare(scenario(workload=WorkloadSpec(trace="agent.npz")), None, seed=1, is_chat=False)
