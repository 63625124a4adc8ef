# SPDX-License-Identifier: Apache-2.0
"""The plugin's own endpoint: its counters, and bindings put in force from outside."""

from __future__ import annotations

import json
import urllib.request
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families
from servers import Server

TOKEN: Final = "a-token-of-one-test-run"  # noqa: S105


def counted(server: Server, metric: Any, rank: int = 0) -> float:
    """Sum over all labels of one metric of the server's page."""
    _, page = server.control("/metrics", rank)
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == metric.name
    )


def bind(server: Server, binding: dict[str, Any], rank: int = 0) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.control_port + rank}/binding", json.dumps(binding).encode(), method="PUT",
        headers={"Authorization": f"Bearer {TOKEN}"},
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200


def sources_of(server: Server, rank: int = 0) -> dict[int, str]:
    """Layer -> what this rank reads it from first."""
    _, status = server.control("/status", rank)
    return {layer["layer"]: layer["sources"][0] for layer in json.loads(status)["layers"]}
