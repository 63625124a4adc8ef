# SPDX-License-Identifier: Apache-2.0
"""A real server in this process for tests: uvicorn on a loopback port, the real core over small regions.

Only the process boundary is missing (test_server_process.py has it): engine and web server run in threads, so that a
test can make the core fail, and no tokenizer is loaded.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import uvicorn
from emulated_support import EOS, HASHER, ByteCodec, engine_settings

from slacktier.errors import SlackTierError
from slacktier_emulated.app import Server, make_app
from slacktier_emulated.channel import FrameKind, json_frame
from slacktier_emulated.clock import MonotonicClock
from slacktier_emulated.engine import Engine
from slacktier_emulated.engine_client import EngineClient
from slacktier_emulated.engine_loop import EngineLoop
from slacktier_emulated.engine_process import layer_setup, layer_states, source_spec
from slacktier_emulated.link import Link
from slacktier_emulated.prefix_cache import PrefixCache
from slacktier_emulated.scheduler import Scheduler
from slacktier_emulated.server import listen
from slacktier_emulated.settings import ServerSettings
from slacktier_native.core import LayerResult, LayerSetup, LookupCore

MODEL = "tiny-emulated"


class FlakyCore(LookupCore):
    """The real core, failing on demand, whole steps at a time.

    fault, flips  from the next step on every wait() raises the fault, every gather() spoils a byte
    """

    def __init__(self, layers: Sequence[LayerSetup], **options: Any) -> None:
        super().__init__(layers, **options)
        self.fault: SlackTierError | None = None
        self.flips = False
        self._in_force: tuple[SlackTierError | None, bool] = (None, False)

    def begin(self, row_ids: Sequence[npt.NDArray[np.int64]]) -> None:
        self._in_force = (self.fault, self.flips)
        super().begin(row_ids)

    def wait(self, layer_index: int) -> LayerResult:
        result = super().wait(layer_index)
        if self._in_force[0] is not None:
            raise self._in_force[0]
        return result

    def gather(self, layer_index: int, out: npt.NDArray[np.uint8]) -> None:
        super().gather(layer_index, out)
        if self._in_force[1]:
            out[0, 0] ^= 1


class LiveServer:
    """Starts on entry, serves at `url`, and leaves nothing behind on exit.

    changes  fields of EngineSettings; server_changes: of ServerSettings
    """

    def __init__(self, paths: dict[int, Path], *, server: dict[str, Any] | None = None, **changes: Any) -> None:
        settings = engine_settings(paths, **changes)
        clock = MonotonicClock()
        self.core = FlakyCore([layer_setup(plan) for plan in settings.layers], rank=settings.rank, tp=settings.tp)
        scheduler = Scheduler(
            running_max=settings.running_max, chunk_tokens=settings.profile.prefill.chunk_tokens,
            ngram_size=HASHER.ngram_size, cache=PrefixCache(settings.prefix_cache_tokens),
        )  # fmt: skip
        self.engine = Engine(
            settings, self.core, HASHER, layer_states(settings, HASHER), scheduler=scheduler, clock=clock,
            make_spec=source_spec,
        )  # fmt: skip
        self.settings = ServerSettings(**{"host": "127.0.0.1", "port": 0, "model_name": MODEL, **(server or {})})
        self.server = Server(self.settings, ByteCodec(), eos_id=EOS, running_max=settings.running_max)
        self._clock = clock
        self._engine_socket, self._server_socket = socket.socketpair()
        self._socket = listen("127.0.0.1", 0)
        self._uvicorn: uvicorn.Server | None = None
        self._up = threading.Event()
        self._threads = [threading.Thread(target=run) for run in (self._run_engine, self._run_web)]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def _run_engine(self) -> None:
        with self._engine_socket:
            link = Link(self._engine_socket)
            self.engine.warm_up()
            link.send(json_frame(FrameKind.READY, self.engine.status()))
            EngineLoop(self.engine, link, self._clock, probe_s=0.02).run()
        self.core.close()

    def _run_web(self) -> None:
        async def main() -> None:
            client = await EngineClient.connect(self._server_socket, lambda message: None)
            self.server.client = client
            await client.started
            config = uvicorn.Config(
                make_app(self.server), http="httptools", lifespan="off", log_level="error", access_log=False,
                timeout_graceful_shutdown=1,
            )  # fmt: skip
            self._uvicorn = uvicorn.Server(config)
            serving = asyncio.create_task(self._uvicorn.serve(sockets=[self._socket]))
            while not self._uvicorn.started:
                await asyncio.sleep(0.001)
            self._up.set()
            await serving
            client.stop()
            client.fail_all("the server is shutting down")

        asyncio.run(main())

    def __enter__(self) -> LiveServer:
        for thread in self._threads:
            thread.start()
        assert self._up.wait(10)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._uvicorn is not None
        self._uvicorn.should_exit = True
        for thread in self._threads:
            thread.join(10)
        self._socket.close()
        self._server_socket.close()


@dataclass
class Streamed:
    """One streamed answer as a client saw it."""

    status: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    is_done: bool = False

    @property
    def text(self) -> str:
        choices = [event["choices"][0] for event in self.events if event.get("choices")]
        return "".join(choice["delta"]["content"] if "delta" in choice else choice["text"] for choice in choices)

    @property
    def usage(self) -> dict[str, Any]:
        (found,) = [event["usage"] for event in self.events if event.get("usage")]
        return dict(found)

    @property
    def finish_reasons(self) -> list[str | None]:
        return [event["choices"][0]["finish_reason"] for event in self.events if event.get("choices")]

    @property
    def error(self) -> dict[str, Any]:
        return dict(self.events[-1]["error"])


async def events(response: httpx.Response) -> AsyncIterator[str]:
    """The data of each server-sent event."""
    async for line in response.aiter_lines():
        assert line == "" or line.startswith("data: "), line
        if line:
            yield line.removeprefix("data: ")


async def stream(client: httpx.AsyncClient, body: dict[str, Any], path: str = "/v1/completions") -> Streamed:
    """Send a streaming request with usage and collect the answer."""
    body = {"stream": True, "stream_options": {"include_usage": True}, **body}
    found = Streamed()
    async with client.stream("POST", path, json=body) as response:
        found.status = response.status_code
        if response.status_code != 200:
            found.events.append(json.loads(await response.aread()))
            return found
        async for data in events(response):
            if data == "[DONE]":
                found.is_done = True
            else:
                found.events.append(json.loads(data))
    return found


def client_of(live: LiveServer) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=live.url, timeout=20, limits=httpx.Limits(max_connections=200))
