# SPDX-License-Identifier: Apache-2.0
"""Request bodies: what is understood, what is ignored, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slacktier_emulated.requests import RequestError, parse_body, parse_chat, parse_completion
from slacktier_emulated.text import Turn, join_turns


def completion(**changes: Any) -> dict[str, Any]:
    return {"prompt": "hello", **changes}


def test_prompt_is_text_ids_or_a_list_of_one() -> None:
    assert parse_completion(completion()).prompt == "hello"
    assert parse_completion(completion(prompt=[1, 2])).prompt == [1, 2]
    assert parse_completion(completion(prompt=["one"])).prompt == "one"
    assert parse_completion(completion(prompt=[[4, 5]])).prompt == [4, 5]


def test_defaults_are_openais() -> None:
    found = parse_completion(completion())
    assert (found.max_tokens, found.stream, found.ignore_eos, found.stops, found.answer) == (16, False, False, (), [])
    assert parse_chat({"messages": [{"role": "user", "content": "x"}]}).max_tokens is None


def test_parameters_that_are_not_known_are_ignored() -> None:
    parse_completion(completion(top_k=5, guided_json={"a": 1}, temperature=1, logit_bias={"5": 3}))


def test_recorded_answer_comes_in_the_extension() -> None:
    assert parse_completion(completion(slacktier={"output_token_ids": [7, 8]})).answer == [7, 8]
    assert parse_completion(completion(slacktier={})).answer == []


def test_chat_takes_the_roles_and_contents_that_openai_takes() -> None:
    found = parse_chat({
        "messages": [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "ls", "arguments": "{}"}}]},
            {"role": "tool", "content": "out", "tool_call_id": "1"},
        ],
        "max_completion_tokens": 9, "max_tokens": 5,
    })  # fmt: skip
    assert found.prompt == (
        Turn("system", "be brief"), Turn("user", "ab"), Turn("assistant", "ls({})"), Turn("tool", "out"),
    )  # fmt: skip
    assert found.max_tokens == 9


def test_consecutive_turns_of_one_role_are_joined() -> None:
    turns = [Turn("user", "a"), Turn("user", "b"), Turn("tool", "c"), Turn("user", "d")]
    assert join_turns(turns) == [Turn("user", "a\n\nb"), Turn("tool", "c"), Turn("user", "d")]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [1.0]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [1 << 32]}, "prompt"),
        ({"prompt": [[[1]]]}, "prompt"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": "x"}}, "stream_options"),
        ({"stop": 5}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"seed": "a"}, "seed"),
        ({"n": 2}, "n"),
        ({"best_of": 3}, "n"),
        ({"echo": True}, "echo"),
        ({"logprobs": 1}, "logprobs"),
        ({"temperature": "hot"}, "temperature"),
        ({"model": 5}, "model"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"slacktier": []}, "slacktier"),
        ({"slacktier": {"typo": 1}}, "slacktier"),
        ({"slacktier": {"output_token_ids": "x"}}, "slacktier.output_token_ids"),
        ({"slacktier": {"output_token_ids": []}}, "slacktier.output_token_ids"),
    ],
)
def test_wrong_type_or_value_is_refused_in_openais_shape(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_completion(completion(**changes))
    error = caught.value.body()["error"]
    assert (caught.value.status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert error["message"].startswith(param.split(".")[0])
    json.dumps(error)


@pytest.mark.parametrize(
    "messages",
    [
        None, [], ["hi"], [{"content": "x"}], [{"role": "robot", "content": "x"}], [{"role": "user", "content": 5}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], [{"role": ["user"], "content": "x"}],
        [{"role": "assistant", "tool_calls": ["x"]}], [{"role": "user", "content": "\udfff"}],
    ],
)  # fmt: skip
def test_messages_that_are_none_are_refused(messages: Any) -> None:
    with pytest.raises(RequestError, match="messages"):
        parse_chat({"messages": messages})


@pytest.mark.parametrize(
    "raw", [b"", b"\x00\xff\xfe garbage", b"[1, 2]", b'"text"', b'{"a":', b"[" * 100_000, b"1" * 5000, b"\xff{}"]
)
def test_body_that_is_no_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        parse_body(raw)
    assert caught.value.status == 400
