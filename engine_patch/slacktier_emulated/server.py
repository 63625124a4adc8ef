# SPDX-License-Identifier: Apache-2.0
"""Runs the web server and its engine process together: start, signals, and an end that leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Iterator
from multiprocessing.context import SpawnProcess
from typing import Any, Final

import uvicorn
import uvloop

from slacktier.errors import ConfigError
from slacktier_emulated import engine_process
from slacktier_emulated.app import Server, make_app
from slacktier_emulated.binding import Bound
from slacktier_emulated.engine_client import EngineClient
from slacktier_emulated.settings import EngineSettings, ServerSettings
from slacktier_emulated.text import Codec

# The engine gets this long to end by itself, and to write what it records; after a second signal only so long.
_JOIN_S: Final = 10.0
_JOIN_NOW_S: Final = 0.5
# After the last stream has been told that it ends, clients get this long to read it.
_CLOSE_S: Final = 2


class _Uvicorn(uvicorn.Server):
    """Leaves signals to us: what ends first is the streams, not the sockets."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """What is cancelled at the end is a client that does not read or send; uvicorn counts those without a trace."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; raises ConfigError if the address cannot be had. Port 0 takes a free one."""
    sock: socket.socket | None = None
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError as exc:
        if sock is not None:
            sock.close()
        hint = "another program listens there; --port 0 takes a free one" if exc.errno == errno.EADDRINUSE else ""
        raise ConfigError(f"{host}:{port}: cannot listen: {exc.strerror or exc}", hint=hint) from exc
    return sock


def spawn_engine(settings: EngineSettings) -> tuple[SpawnProcess, socket.socket]:
    """Start the engine process; returns it and the server's end of the socket pair."""
    ours, theirs = socket.socketpair()
    process = multiprocessing.get_context("spawn").Process(
        target=engine_process.main, args=(theirs, settings), name="slacktier-engine"
    )
    process.start()
    theirs.close()  # so that our end reads EOF when the engine ends
    return process, ours


def serve(
    engine: EngineSettings, settings: ServerSettings, codec: Codec, *, as_json: bool, bound: Bound | None = None
) -> int:
    """Serve until a signal or until the engine ends; returns the exit code.

    bound   the instance of tierd that this server is, if it is one

    raises  ConfigError for what is found wrong before or while the engine starts
    """
    sock = listen(settings.host, settings.port)
    process, engine_sock = spawn_engine(engine)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(
                _Running(engine, settings, codec, process, as_json=as_json, bound=bound).run(sock, engine_sock)
            )
    finally:
        sock.close()
        process.kill()  # does nothing to one that has ended, as after every run to the end
        process.join()


class _Running:
    """One server from start to end."""

    def __init__(
        self, engine: EngineSettings, settings: ServerSettings, codec: Codec, process: SpawnProcess, *, as_json: bool,
        bound: Bound | None,
    ) -> None:  # fmt: skip
        self._process, self._bound = process, bound
        self._settings = settings
        self._engine = engine
        self._server = Server(settings, codec, eos_id=engine.eos_id, running_max=engine.running_max)
        self._as_json = as_json
        self._stop = asyncio.Event()
        self._signals = 0
        self._gone = ""

    async def run(self, sock: socket.socket, engine_sock: socket.socket) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        client = await EngineClient.connect(engine_sock, self._on_gone)
        self._server.client = client
        logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)
        http = _Uvicorn(_uvicorn_config(self._server, self._settings))
        serving = asyncio.create_task(http.serve(sockets=[sock]))
        try:
            await self._until_stopped(client, sock)
        finally:
            client.stop()
            client.fail_all(client.error)
            http.should_exit = True
            await serving
            code = await self._end_engine()
        return 1 if self._gone else code

    async def _end_engine(self) -> int:
        """Wait for the engine, which was told to end; one that does not is stopped by force. 0 if it ended well."""
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        while self._process.is_alive():
            join_s = _JOIN_S if self._signals < 2 else _JOIN_NOW_S
            if loop.time() - begin_s > join_s:
                print(f"slacktier: the engine did not end within {join_s:g} s and was killed", file=sys.stderr)
                self._process.kill()
                self._process.join()
                return 1
            await asyncio.sleep(0.01)
        return 1 if self._process.exitcode else 0

    async def _until_stopped(self, client: EngineClient, sock: socket.socket) -> None:
        stopping = asyncio.ensure_future(self._stop.wait())
        either: list[asyncio.Future[Any]] = [client.started, stopping]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if client.started.done():
            self._announce(client.started.result(), sock)
            following = asyncio.ensure_future(self._bound.run(client)) if self._bound else None
        else:
            client.started.cancel()
            following = None
        await stopping
        if following is not None and self._bound is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await asyncio.to_thread(self._bound.leave)
        if not self._gone:
            await self._drain(client)

    def _announce(self, status: dict[str, Any], sock: socket.socket) -> None:
        host, port = sock.getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        if self._as_json:
            print(json.dumps({
                "url": url, "pid": os.getpid(), "engine_pid": status["pid"], "engine": "emulated",
                "model": self._settings.model_name, "backend": status["backend"], "profile": status["profile"],
            }), flush=True)  # fmt: skip
        else:
            print(banner(self._settings.model_name, url, status, self._engine), file=sys.stderr)

    async def _drain(self, client: EngineClient) -> None:
        """Let running streams go on for a while; a second signal ends them at once."""
        self._server.is_draining = True
        deadline = asyncio.get_running_loop().time() + self._settings.drain_s
        while client.in_flight and self._signals < 2 and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.05)

    def _on_signal(self) -> None:
        self._signals += 1
        self._stop.set()

    def _on_gone(self, message: str) -> None:
        self._gone = message
        print(f"slacktier: {message}; every running stream ends with an error", file=sys.stderr)
        self._stop.set()


def _uvicorn_config(server: Server, settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        make_app(server), http="httptools", loop="none", lifespan="off", access_log=False, log_level="warning",
        server_header=False, date_header=False, timeout_graceful_shutdown=_CLOSE_S,
        headers=[("x-slacktier-engine", "emulated")],
    )  # fmt: skip


def banner(model: str, url: str, status: dict[str, Any], engine: EngineSettings) -> str:
    """What a person reads when the server is ready."""
    layers = "\n".join(
        f"  layer {plan.layer_id}: {', '.join(source.tier.value for source in plan.sources)}; "
        f"{plan.cache_rows} cache rows; {plan.sources[0].where}"
        for plan in engine.layers
    )
    return (
        f"EMULATED ENGINE: look-ups are real, compute is waited for; no model runs and answers are not a model's.\n"
        f"{model} at {url}, profile {engine.profile.name}, rank {engine.rank} of {engine.tp}, "
        f"I/O back end {status['backend']}\n{layers}"
    )
