# SPDX-License-Identifier: Apache-2.0
"""The head's API as a caller sees it: who may do what, what is refused and how, watches and waiting lists."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from tierd_support import ADMIN, ALICE, READER, Head, instance_body, table_body

from slacktier.api import BODY_BYTES_MAX, Kind
from slacktier_tierd.head.settings import Decider
from slacktier_tierd.head.watching import watch

POOL = {"tier": "nvme", "members": [{"name": "d0", "path": "/nowhere"}]}


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def _code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_call_without_a_valid_token_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        head = Head(tmp_path)
        for token in (None, "wrong-token-0123456789", "x" * 9000, "two words"):
            for method, path in (("GET", "/v1/pools"), ("PUT", "/v1/pools/p"), ("GET", "/v1/nothing")):
                answer = await head.call(method, path, POOL, token=token)
                assert _code(answer) == (401, "unauthorized")
                assert answer.headers["www-authenticate"] == "Bearer"
        assert head.store.count(Kind.POOLS) == 0
        head.close()

    run(work())


CALLS: list[tuple[str, str, str, Any, int]] = [
    (READER, "GET", "/v1/pools", None, 200),
    (READER, "PUT", "/v1/pools/p", POOL, 403),
    (READER, "DELETE", "/v1/pools/p", None, 403),
    (READER, "GET", "/v1/instances/alice/access", None, 403),
    (READER, "GET", "/v1/instances/alice/seed", None, 403),
    (ALICE, "PUT", "/v1/pools/p", POOL, 403),
    (ALICE, "PUT", "/v1/instances/alice", instance_body(), 201),
    (ALICE, "PUT", "/v1/instances/bob", instance_body(), 403),
    (ALICE, "DELETE", "/v1/instances/bob", None, 403),
    (ALICE, "GET", "/v1/instances/bob/access", None, 403),
    (ALICE, "PUT", "/v1/bindings/alice", {"layers": [{"layer_id": 14, "replicas": ["a"]}]}, 403),
    (ADMIN, "PUT", "/v1/tasks/t", {}, 405),
    (ADMIN, "GET", "/v1/pools/p", None, 404),
    (ADMIN, "GET", "/v1/instances/bob/access", None, 404),
    (ADMIN, "GET", "/v1/pools?limit=0", None, 422),
    (ADMIN, "GET", "/v1/watch?kinds=spoons", None, 422),
    (ADMIN, "PUT", "/v1/pools/UPPER", POOL, 422),
    (ADMIN, "PUT", "/v1/pools/p", {"tier": "nvme"}, 422),
    (ADMIN, "PUT", "/v1/replicas/r", {"table": "t", "pool": "p"}, 409),
]


def test_role_decides_what_a_caller_may_do(tmp_path: Path) -> None:
    async def work() -> None:
        head = Head(tmp_path)
        for token, method, path, body, status in CALLS:
            answer = await head.call(method, path, body, token=token)
            assert answer.status_code == status, (token, method, path, answer.text)
            if status >= 400:
                assert answer.json()["error"]["message"]
        head.close()

    run(work())


def test_body_that_is_too_large_or_no_json_changes_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        head = Head(tmp_path)
        for content, status in ((b"x" * (BODY_BYTES_MAX + 1), 413), (b"{", 400), (b"[]", 422), (b"\xff\xfe", 400)):
            answer = await head.call("PUT", "/v1/pools/p", content=content)
            assert answer.status_code == status, answer.text
            assert answer.json()["error"]["code"] == "invalid"
        assert head.store.count(Kind.POOLS) == 0
        head.close()

    run(work())


def test_caller_that_asks_too_often_is_told_when_to_come_back(tmp_path: Path) -> None:
    async def work() -> None:
        head = Head(tmp_path, requests_per_s=2)
        answers = [await head.call("GET", "/v1/pools") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert int(answers[-1].headers["retry-after"]) >= 1
        assert (await head.call("GET", "/v1/pools", token=READER)).status_code == 200
        head.close()

    run(work())


def test_put_is_idempotent_and_a_changed_table_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        head = Head(tmp_path)
        first = await head.call("PUT", "/v1/tables/t14", table_body())
        again = await head.call("PUT", "/v1/tables/t14", table_body())
        assert (first.status_code, again.status_code) == (201, 200)
        assert first.json() == again.json()
        assert _code(await head.call("PUT", "/v1/tables/t14", table_body(rows=9))) == (409, "conflict")
        head.close()

    run(work())


def test_every_change_leaves_an_audit_line_and_no_token_in_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        head = Head(tmp_path)
        await head.call("PUT", "/v1/pools/p", POOL)
        await head.call("PUT", "/v1/replicas/r", {"table": "t", "pool": "p"})
        await head.call("PUT", "/v1/pools/p", POOL, token=READER)
        await head.call("DELETE", "/v1/pools/p")
        head.close()

    with caplog.at_level(logging.INFO, "slacktier.audit"):
        run(work())
    lines = [json.loads(record.message) for record in caplog.records]
    assert [(line["audit"], line["by"], line["outcome"]) for line in lines] == [
        ("put", "me", "created"), ("put", "me", "refused"), ("refuse", "eve", "forbidden"), ("delete", "me", "deleted"),
    ]  # fmt: skip
    assert ADMIN not in caplog.text


def test_waiting_list_answers_with_the_change(tmp_path: Path) -> None:
    async def work() -> None:
        head = Head(tmp_path)
        version = (await head.call("GET", "/v1/pools")).json()["version"]
        waiting = asyncio.ensure_future(head.call("GET", f"/v1/pools?version={version}&wait_s=20"))
        await asyncio.sleep(0.05)
        await head.put("pools/p", POOL)
        answer = (await asyncio.wait_for(waiting, 5)).json()
        assert [item["name"] for item in answer["items"]] == ["p"]
        head.close()

    run(work())


async def _events(chunk: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in chunk.decode().splitlines() if line.startswith("data: ")]


def test_watch_tells_all_there_is_then_each_change(tmp_path: Path) -> None:
    async def work() -> None:
        head = Head(tmp_path)
        await head.put("pools/p", POOL)
        events = watch(head.store, frozenset({Kind.POOLS}), None)
        opening = await _events(await anext(events))
        assert [(event["type"], event["name"]) for event in opening] == [("sync", None), ("put", "p")]
        assert opening[1]["item"] == (await head.call("GET", "/v1/pools/p")).json()
        following = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        await head.call("DELETE", "/v1/pools/p")
        (gone,) = await _events(await asyncio.wait_for(following, 5))
        assert (gone["type"], gone["name"], gone["item"]) == ("delete", "p", None)
        await events.aclose()
        head.close()

    run(work())


def test_seed_server_is_listed_without_its_address_and_told_to_bound_instances(tmp_path: Path) -> None:
    async def work() -> None:
        head = Head(tmp_path)
        seed = {"host": "10.0.0.9", "port": 4711, "token": "ab" * 32, "layers": [14]}
        await head.put("seeds/prefill-0", seed)
        for answer in (
            await head.call("GET", "/v1/seeds", token=READER),
            await head.call("GET", "/v1/seeds/prefill-0"),
        ):
            assert "10.0.0.9" not in answer.text
            assert "abab" not in answer.text
        assert _code(await head.call("GET", "/v1/instances/prefill-0/seed", token=ALICE)) == (409, "conflict")
        await head.pool("nvme", tmp_path, ["d0"])
        await head.put("tables/t14", table_body())
        await head.put("instances/alice", instance_body(), token=ALICE)
        await head.tick(lambda: "alice" in head.service.world.bindings)
        told = await head.call("GET", "/v1/instances/prefill-0/seed", token=ALICE)
        assert told.json()["seed"] == seed
        head.close()

    run(work())


def test_operator_binds_and_tierd_enforces(tmp_path: Path) -> None:
    async def work() -> None:
        head = Head(tmp_path, decider=Decider.OPERATOR)
        await head.pool("nvme", tmp_path, ["d0"])
        await head.put("tables/t14", table_body())
        await head.put("replicas/a", {"table": "t14", "pool": "nvme"})
        await head.put("instances/alice", instance_body(), token=ALICE)
        await head.tick(count=3)
        access = (await head.call("GET", "/v1/instances/alice/access", token=ALICE)).json()
        assert (access["bound"], access["message"]) == (False, "no binding has been made yet")
        unknown = {"layers": [{"layer_id": 14, "replicas": ["nothing"]}]}
        assert _code(await head.call("PUT", "/v1/bindings/alice", unknown)) == (409, "conflict")
        wrong = {"layers": [{"layer_id": 1, "replicas": ["a"]}]}
        assert "holds layer 14" in (await head.call("PUT", "/v1/bindings/alice", wrong)).text
        bound = {"layers": [{"layer_id": 14, "replicas": ["a"], "cache_rows": 50}]}
        binding = await head.put("bindings/alice", bound)
        assert binding["status"]["access_version"] > access["version"]
        access = (await head.call("GET", "/v1/instances/alice/access", token=ALICE)).json()
        (layer,) = access["layers"]
        assert (layer["cache_rows"], layer["replicas"][0]["replica"]) == (50, "a")
        report = {"in_force": access["version"], "ready": True, "seconds": 1.0}
        await head.put("instances/alice/report", report, token=ALICE)
        binding = (await head.call("GET", "/v1/bindings/alice")).json()
        in_force = [each for each in binding["status"]["conditions"] if each["type"] == "InForce"]
        assert in_force[0]["status"] == "True"
        head.close()

    run(work())


def test_sharing_that_would_hurt_is_refused_at_the_call(tmp_path: Path) -> None:
    async def work() -> None:
        head = Head(tmp_path)
        await head.pool("nvme", tmp_path, ["d0"], read={"a_us": 300, "b_us": 10})
        await head.put("tables/t14", table_body())
        await head.tick(count=2)
        await head.put("instances/alice", instance_body())
        await head.tick(lambda: "alice" in head.service.world.bindings)
        answer = await head.call("PUT", "/v1/instances/bob", instance_body(slo_pct=50.0))
        assert _code(answer) == (409, "sharing_refused")
        details = answer.json()["error"]["details"]
        assert (details["instance"], details["instances_now"]) == ("alice", {"nvme/d0": 1})
        assert head.store.get(Kind.INSTANCES, "bob") is None
        head.close()

    run(work())


def test_health_metrics_and_openapi_need_no_token(tmp_path: Path) -> None:
    async def work() -> None:
        head = Head(tmp_path)
        for path in ("/healthz", "/readyz", "/metrics", "/openapi.json", "/"):
            assert (await head.call("GET", path, token=None)).status_code == 200, path
        document = (await head.call("GET", "/openapi.json", token=None)).json()
        assert "/v1/instances/{name}/access" in document["paths"]
        assert document["components"]["securitySchemes"]
        scraped = (await head.call("GET", "/metrics", token=None)).text
        assert 'slacktier_resources{kind="pools"} 0.0' in scraped
        head.close()

    run(work())
