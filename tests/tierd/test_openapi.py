# SPDX-License-Identifier: Apache-2.0
"""Calls drawn from the OpenAPI document: no 5xx, no answer that the document does not describe, no secret told.

SLACKTIER_API_CALLS sets how many; CI makes 150, a full run 10,000.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from tierd_support import ADMIN, READER, Head

from slacktier_tierd.head.server import listen

CALLS = int(os.environ.get("SLACKTIER_API_CALLS", "150"))
OPERATIONS = 3 + 1 + 3 + 2 * 8 + 2 * 7  # health, watch, instance's own, reads, writes
pytestmark = pytest.mark.timeout(300 + CALLS)


async def _serve_and(head: Head, work: Callable[[str], Any]) -> Any:
    """Serve the head on loopback while `work(url)` runs on another thread."""
    sock = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(head.guard, lifespan="off", log_level="warning"))
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        return await asyncio.to_thread(work, f"http://127.0.0.1:{sock.getsockname()[1]}")
    finally:
        server.should_exit = server.force_exit = True
        await serving
        sock.close()


def _schemathesis(url: str, token: str, directory: Path, *, calls: int) -> subprocess.CompletedProcess[str]:
    found = shutil.which("schemathesis", path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip("needs schemathesis: pip install 'slacktier[dev]'")
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    return subprocess.run(
        [
            found, "run", f"{url}/openapi.json", "--header", f"Authorization: Bearer {token}", "--checks", checks,
            "--phases", "fuzzing", "--max-examples", str(max(1, calls // OPERATIONS)), "--exclude-path", "/v1/watch",
            "--generation-database", "none", "--request-timeout", "60", "--continue-on-failure", "--no-color",
            "--suppress-health-check", "all",
        ],
        capture_output=True, text=True, cwd=directory, timeout=240 + CALLS, check=False,
    )  # fmt: skip


def _draw(head: Head, directory: Path, token: str, calls: int) -> None:
    done = asyncio.run(_serve_and(head, lambda url: _schemathesis(url, token, directory, calls=calls)))
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_drawn_calls_get_the_answers_that_the_document_describes(tmp_path: Path) -> None:
    head = Head(tmp_path)
    _draw(head, tmp_path, ADMIN, CALLS)
    head.close()


def test_drawn_calls_of_a_reader_change_nothing(tmp_path: Path) -> None:
    head = Head(tmp_path)
    version = head.store.version
    _draw(head, tmp_path, READER, CALLS // 2)
    assert head.store.version == version
    head.close()


def test_drawn_calls_with_a_wrong_token_are_all_refused(tmp_path: Path) -> None:
    head = Head(tmp_path)
    version = head.store.version
    _draw(head, tmp_path, "expired-token-0123456789", CALLS // 2)
    assert head.store.version == version
    assert head.guard.refusals["unauthorized"] > 0
    head.close()
