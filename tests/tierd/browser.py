# SPDX-License-Identifier: Apache-2.0
"""A real Chromium without a window, driven over its DevTools socket."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import aiohttp
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell")


def find_chromium() -> str:
    """The browser's path; skips the test, saying what it needs, where there is none."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    return found


class Page:
    """One tab. requested: every URL that the page asked for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._id = 0
        self.requested: list[str] = []

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        self._id += 1
        await self._socket.send_json({"id": self._id, "method": method, "params": params})
        while True:
            answer = json.loads((await self._socket.receive(timeout=30)).data)
            if answer.get("method") == "Network.requestWillBeSent":
                self.requested.append(answer["params"]["request"]["url"])
            if answer.get("id") == self._id:
                assert "error" not in answer, answer
                found: dict[str, Any] = answer["result"]
                return found

    async def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = await self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def wait(self, script: str, what: str, seconds: float = 40.0) -> None:
        """Until an expression is true."""
        for _ in range(int(seconds * 10)):
            if await self.run(script):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(
            f"not within {seconds:g} s: {what}; the page says {await self.run('document.body.innerText')}"
        )


async def start(chromium: str, directory: Path) -> tuple[asyncio.subprocess.Process, int]:
    """A browser with a profile of its own, and its DevTools port."""
    process = await asyncio.create_subprocess_exec(
        chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
        "--remote-debugging-port=0", f"--user-data-dir={directory}", "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    port_file = directory / "DevToolsActivePort"
    for _ in range(600):
        if port_file.exists() and (lines := port_file.read_text().splitlines()):
            return process, int(lines[0])
        await asyncio.sleep(0.1)
    process.kill()
    await process.wait()
    raise AssertionError("the browser did not start within 60 s")


async def open_page(session: aiohttp.ClientSession, port: int) -> Page:
    """The browser's one tab."""
    async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
        tabs = await answer.json(content_type=None)
    tab = next(each for each in tabs if each["type"] == "page")
    page = Page(await session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0))
    for domain in ("Page", "Runtime", "Network"):
        await page.send(f"{domain}.enable")
    return page
