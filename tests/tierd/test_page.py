# SPDX-License-Identifier: Apache-2.0
"""The web page in a real Chromium: all there is, live, and nothing from elsewhere."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest
import uvicorn
from browser import Page, find_chromium, open_page, start
from tierd_support import READER, Head, instance_body, table_body

from slacktier.api import ReplicaState
from slacktier_tierd.head.server import listen

pytestmark = pytest.mark.timeout(180)


async def _look(head: Head, page: Page, url: str, directory: Path) -> None:
    await page.send("Page.navigate", url=url)
    await page.wait("document.readyState === 'complete'", "the page is loaded")
    await page.run("document.getElementById('token').value = 'wrong-token-0123456789'")
    await page.run("document.querySelector('#login button').click()")
    await page.wait("document.getElementById('state').textContent.includes('not valid')", "a wrong token is told")
    await page.run(f"document.getElementById('token').value = '{READER}'")
    await page.run("document.querySelector('#login button').click()")
    await page.wait("document.getElementById('state').textContent === 'live'", "live")
    # Everything from here on arrives by the watch.
    await head.pool("nvme", directory, ["d0"])
    await head.put("tables/t14", table_body())
    await head.put("instances/alice", instance_body())
    await head.tick(
        lambda: "alice" in head.service.world.bindings and head.replica("t14.nvme.d0").state is ReplicaState.COMPLETE
    )
    access = head.service.access("alice")
    figures = {"layer_id": 14, "tier": "nvme", "hits": 90, "misses": 10, "read_us_mean": 1234.0, "window_us": 9350}
    report = {"in_force": access.version, "ready": True, "seconds": 1, "steps": 1, "layers": [figures]}
    await head.put("instances/alice/report", report)
    await page.wait("document.getElementById('bindings').innerText.includes('1.234 ms')", "measured read time")
    text = await page.run("document.getElementById('main').innerText")
    for shown in ("alice", "t14.nvme.d0", "9.350 ms", "90.0 %", "in force", "complete", "nvme/d0", "synthetic-v41"):
        assert shown in text, (shown, text)
    await head.call("DELETE", "/v1/instances/alice")
    await page.wait("!document.getElementById('bindings').innerText.includes('alice')", "the binding is gone")


def test_page_shows_everything_live_and_asks_nobody_else(tmp_path: Path) -> None:
    chromium = find_chromium()

    async def work() -> None:
        head = Head(tmp_path)
        sock = listen("127.0.0.1", 0)
        server = uvicorn.Server(uvicorn.Config(head.guard, lifespan="off", log_level="warning"))
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}/"
        process, port = await start(chromium, tmp_path / "profile")
        try:
            async with aiohttp.ClientSession() as session:
                page = await open_page(session, port)
                await _look(head, page, url, tmp_path)
                assert page.requested
                assert all(each.startswith(url) for each in page.requested), page.requested
        finally:
            process.kill()
            await process.wait()
            server.should_exit = server.force_exit = True
            await serving
            sock.close()
            head.close()

    asyncio.run(work())
