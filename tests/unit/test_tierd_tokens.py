# SPDX-License-Identifier: Apache-2.0
"""Whose a token is: token files, TokenReview, and how often a caller may ask."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from slacktier.errors import ConfigError
from slacktier_tierd.head.limits import RateLimit
from slacktier_tierd.head.tokens import (
    FileTokens,
    Principal,
    ReviewedTokens,
    Role,
    TokenReviewUnavailableError,
    api_server_post,
    parse_tokens,
)

GOOD = "0123456789abcdef"
POD = {"authentication.kubernetes.io/pod-name": ["engine-0"]}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no token in it"),
        ("admin me", "2 words, expected ROLE NAME TOKEN"),
        (f"king me {GOOD}", "role 'king'"),
        ("admin me short", "a token of 5 characters, expected at least 16"),
        (f"admin me {GOOD}\nreader you {GOOD}", "line 2: the token of another line"),
    ],
)
def test_token_file_that_makes_no_sense_is_refused_without_telling_a_token(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        parse_tokens(text, "tokens")
    assert GOOD not in str(caught.value)


def _file(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_token_file_that_changes_is_taken_over_and_a_wrong_one_is_not(tmp_path: Path) -> None:
    path = _file(tmp_path / "tokens", f"admin me {GOOD}\n# a comment\n\n")
    tokens = FileTokens(path)
    assert tokens.principal(GOOD) == Principal(Role.ADMIN, "me")
    assert not tokens.reload()
    _file(path, "admin me")
    with pytest.raises(ConfigError, match="2 words"):
        tokens.reload()
    assert tokens.principal(GOOD) is not None
    _file(path, "admin me fedcba9876543210")
    assert tokens.reload()
    assert tokens.principal(GOOD) is None


def test_token_file_that_everybody_can_read_is_refused(tmp_path: Path) -> None:
    path = _file(tmp_path / "tokens", f"admin me {GOOD}")
    os.chmod(path, 0o644)  # noqa: PTH101
    with pytest.raises(ConfigError, match="every user can read"):
        FileTokens(path)


def _answer(username: str, *, extra: Mapping[str, Any] | None = None, audience: str = "slacktier") -> dict[str, Any]:
    user = {"username": username, "extra": extra or {}}
    return {"status": {"authenticated": True, "audiences": [audience], "user": user}}


@pytest.mark.parametrize(
    ("answer", "principal"),
    [
        (_answer("system:serviceaccount:slacktier:operator"), Principal(Role.ADMIN, "slacktier:operator")),
        (_answer("system:serviceaccount:ml:viewer"), Principal(Role.READER, "ml:viewer")),
        (_answer("system:serviceaccount:ml:default", extra=POD), Principal(Role.INSTANCE, "ml.engine-0")),
        (_answer("system:serviceaccount:ml:default"), None),
        (_answer("system:node:n1", extra=POD), None),
        (_answer("system:serviceaccount:slacktier:operator", audience="other"), None),
        ({"status": {"authenticated": False}}, None),
        ({"status": None}, None),
        ({}, None),
    ],
)
def test_token_review_tells_operator_pod_and_stranger_apart(answer: dict[str, Any], principal: object) -> None:
    tokens = ReviewedTokens(lambda _: answer, admins=["slacktier:operator"], readers=["ml:viewer"])
    assert tokens.principal("token") == principal


def test_token_review_is_asked_again_only_when_its_answer_is_old() -> None:
    asked: list[Any] = []
    now = [0.0]

    def post(body: Mapping[str, Any]) -> Mapping[str, Any]:
        asked.append(body)
        return _answer("system:serviceaccount:a:b")

    tokens = ReviewedTokens(post, admins=["a:b"], keep_s=30, now_s=lambda: now[0])
    for at in (0.0, 29.0, 31.0):
        now[0] = at
        tokens.principal("token")
    assert len(asked) == 2
    assert asked[0]["spec"] == {"token": "token", "audiences": ["slacktier"]}


def test_api_server_that_is_away_is_no_verdict() -> None:
    def post(_: Mapping[str, Any]) -> Mapping[str, Any]:
        raise TimeoutError("timed out")

    tokens = ReviewedTokens(post, admins=["a:b"])
    with pytest.raises(TokenReviewUnavailableError, match="timed out"):
        tokens.principal("token")


def test_token_review_needs_https_and_a_pod() -> None:
    with pytest.raises(ConfigError, match="expected https"):
        api_server_post("http://example")
    with pytest.raises(ConfigError, match="TokenReview"):
        api_server_post()


def test_caller_that_asks_too_often_waits_and_others_do_not() -> None:
    now = [0.0]
    limit = RateLimit(per_s=2, burst=2, now_s=lambda: now[0])
    assert [limit.wait_s("a") for _ in range(3)] == [0.0, 0.0, 0.5]
    assert limit.wait_s("b") == 0.0
    now[0] = 0.5
    assert limit.wait_s("a") == 0.0
