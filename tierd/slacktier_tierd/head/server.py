# SPDX-License-Identifier: Apache-2.0
"""Runs the head: the API, the reconciler and Ray's driver, from the first line to an end that leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Final

import uvicorn
import uvloop

from slacktier.api import Kind, ReplicaStatus
from slacktier.errors import ConfigError, SlackTierError
from slacktier.tiers import REMOTE_TIERS
from slacktier_tierd.deployment.ray_deployment import RayDeployment
from slacktier_tierd.head.app import make_app
from slacktier_tierd.head.guard import Guard
from slacktier_tierd.head.limits import RateLimit
from slacktier_tierd.head.metrics import HeadMetrics
from slacktier_tierd.head.reconcile import Reconciler
from slacktier_tierd.head.service import Service
from slacktier_tierd.head.settings import HeadSettings
from slacktier_tierd.head.store import Store
from slacktier_tierd.head.tokens import FileTokens, Tokens

LOGGER = logging.getLogger("slacktier.tierd")
_RELOAD_S: Final = 2.0
_STARTING_S: Final = 0.01
_CLOSE_S: Final = 2


class _Uvicorn(uvicorn.Server):
    """Leaves signals to us: watches never end by themselves."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; raises ConfigError if the address cannot be had. Port 0 takes a free one."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as exc:
        raise ConfigError(f"{host}:{port}: {exc.strerror or exc}") from exc
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError as exc:
        sock.close()
        hint = "another program listens there; --port 0 takes a free one" if exc.errno == errno.EADDRINUSE else ""
        raise ConfigError(f"{host}:{port}: cannot listen: {exc.strerror or exc}", hint=hint) from exc
    return sock


def run(settings: HeadSettings, tokens: Tokens, deployment: RayDeployment, *, as_json: bool, stop_nodes: bool) -> int:
    """Serve until a signal; returns the exit code.

    stop_nodes  end the memory nodes as well; otherwise they go on serving until the next head, or their lease's end
    raises      ConfigError for an address or a state file that cannot be had
    """
    sock = listen(settings.host, settings.port)
    try:
        store = Store(settings.state_path)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_Head(settings, tokens, deployment, store).run(sock, as_json, stop_nodes))
    finally:
        sock.close()


class _Head:
    def __init__(self, settings: HeadSettings, tokens: Tokens, deployment: RayDeployment, store: Store) -> None:
        self._settings, self._tokens, self._deployment, self._store = settings, tokens, deployment, store
        self._stop = asyncio.Event()

    async def run(self, sock: socket.socket, as_json: bool, stop_nodes: bool) -> int:
        service = Service(self._store, self._settings)
        reconciler = Reconciler(service, self._deployment)

        def is_ready() -> tuple[bool, str]:
            if not self._deployment.is_up:
                return False, self._deployment.last_error
            return not reconciler.last_error, reconciler.last_error

        metrics = HeadMetrics(
            tick=lambda: (reconciler.tick_s, reconciler.tick_count), restarts=lambda: self._deployment.restarts,
            refusals=lambda: guard.refusals,
        )  # fmt: skip
        app = make_app(service, is_ready=is_ready, metrics=metrics)
        limit = RateLimit(self._settings.requests_per_s, 2 * self._settings.requests_per_s)
        guard = Guard(app, self._tokens, limit, body_timeout_s=self._settings.body_timeout_s)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        http = _Uvicorn(_uvicorn_config(guard, self._settings))
        serving = loop.create_task(http.serve(sockets=[sock]))
        self._deployment.start()
        loops = [loop.create_task(reconciler.run()), loop.create_task(self._reload_tokens())]
        while not (http.started or serving.done()):  # whoever reads the announcement may call at once
            await asyncio.sleep(_STARTING_S)
        if http.started:
            self._announce(sock, as_json)
        try:
            await asyncio.wait([loop.create_task(self._stop.wait()), serving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await reconciler.close()
            if stop_nodes:
                await self._stop_memory_nodes(service)
            http.should_exit = True
            await serving
            await self._deployment.close()
            self._store.close()
        return 0 if self._stop.is_set() else 1

    async def _reload_tokens(self) -> None:
        """A token file that changes is taken over; a wrong one is told once and changes nothing."""
        while isinstance(self._tokens, FileTokens):
            await asyncio.sleep(_RELOAD_S)
            try:
                if self._tokens.reload():
                    LOGGER.info("the token file was read again")
            except ConfigError as exc:
                LOGGER.error("%s; the tokens in force stay", exc)

    async def _stop_memory_nodes(self, service: Service) -> None:
        for entry in service.store.all(Kind.REPLICAS):
            status = entry.status
            if isinstance(status, ReplicaStatus) and status.tier in REMOTE_TIERS:
                try:
                    await self._deployment.stop_memory_node(status.node, entry.name)
                except SlackTierError as exc:
                    LOGGER.error("memory node %s was not stopped: %s", entry.name, exc)

    def _announce(self, sock: socket.socket, as_json: bool) -> None:
        host, port = sock.getsockname()[:2]
        scheme = "https" if self._settings.tls_cert else "http"
        url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
        if as_json:
            print(json.dumps({"url": url, "pid": os.getpid(), "decider": self._settings.decider.value}), flush=True)
        else:
            print(f"slacktier tierd at {url}; {self._settings.decider.value} decides; web page at {url}/",
                  file=sys.stderr)  # fmt: skip


def _uvicorn_config(app: Guard, settings: HeadSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app, http="httptools", loop="none", lifespan="off", access_log=False, log_level="warning",
        server_header=False, timeout_graceful_shutdown=_CLOSE_S, timeout_keep_alive=75,
        h11_max_incomplete_event_size=65536,
        ssl_certfile=str(settings.tls_cert) if settings.tls_cert else None,
        ssl_keyfile=str(settings.tls_key) if settings.tls_key else None,
    )  # fmt: skip
