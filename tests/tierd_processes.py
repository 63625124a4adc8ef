# SPDX-License-Identifier: Apache-2.0
"""A real head with its Ray, real emulated instances, streams against them, and what to kill."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

ADMIN = "admin-token-0123456789abcdef"
SLACKTIER = [str(Path(sys.executable).with_name("slacktier"))]


def wait_until(ready: Callable[[], bool], what: str, seconds: float = 120.0) -> float:
    """Seconds until ready() was true; AssertionError naming `what` when the time is up."""
    begun = time.monotonic()
    while not ready():
        assert time.monotonic() - begun < seconds, f"not within {seconds:g} s: {what}"
        time.sleep(0.1)
    return time.monotonic() - begun


class Process:
    """A command of ours whose first line on stdout is JSON."""

    def __init__(self, directory: Path, name: str, arguments: list[str]) -> None:
        self.log = directory / f"{name}.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*SLACKTIER, *arguments], stdout=subprocess.PIPE, stderr=log, cwd=directory, text=True
            )
        assert self._process.stdout is not None
        self._stdout = self._process.stdout
        line = self._stdout.readline()
        assert line, f"{name} did not start: {self.log.read_text()[-2000:]}"
        self.hello: dict[str, Any] = json.loads(line)
        self.url: str = self.hello["url"]

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(30)
        self._stdout.close()

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
        self._stdout.close()


class Tierd:
    """One head's directory: its state outlives the process."""

    def __init__(self, directory: Path, host: str = "127.0.0.1") -> None:
        self.directory, self.host = directory, host
        # Sockets lie there, and tierd takes at most 60 characters: pytest's directory may be longer by itself.
        short = tempfile.mkdtemp(prefix="tierd-")
        weakref.finalize(self, shutil.rmtree, short, ignore_errors=True)
        self.run_dir = Path(short) / "run"
        tokens = directory / "tokens"
        tokens.write_text(f"admin me {ADMIN}\n")
        tokens.chmod(0o600)
        self.token_file = directory / "admin.token"
        self.token_file.write_text(ADMIN)
        self.port = 0
        self.start()

    def start(self) -> None:
        self.head = Process(self.directory, "head", [
            "tierd", "--token-file", "tokens", "--state", "state.sqlite", "--port", str(self.port), "--json",
            "--run-dir", str(self.run_dir), "--look-s", "1", "--stop-memory-nodes", "--host", self.host,
            "--advertise", self.host,
        ])  # fmt: skip
        self.port = int(self.head.url.rsplit(":", 1)[1])

    def call(self, method: str, path: str, body: Any = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {ADMIN}"}
        return httpx.request(
            method, f"{self.head.url}/v1/{path}", json=body, headers=headers, timeout=30, trust_env=False
        )

    def put(self, path: str, body: Any) -> Any:
        answer = self.call("PUT", path, body)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    def get(self, path: str) -> Any:
        answer = self.call("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.head.url}/readyz", timeout=5, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def replica(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"replicas/{name}")["status"]
        return found

    def wait_complete(self, *names: str, seconds: float = 150.0) -> None:
        for name in names:
            wait_until(lambda name=name: self.replica(name)["state"] == "complete", f"{name} complete", seconds)  # type: ignore[misc]

    def wait_in_force(self, instance: str, seconds: float = 60.0) -> dict[str, Any]:
        """The binding's status once the instance reads by the newest access."""

        def is_in_force() -> bool:
            status = self.get(f"bindings/{instance}")["status"]
            return status["access_version"] == status["in_force_version"] != 0

        wait_until(is_in_force, f"{instance} in force", seconds)
        found: dict[str, Any] = self.get(f"bindings/{instance}")["status"]
        return found

    def below(self, marker: str) -> list[int]:
        """Processes of the head's own Ray whose command line has the marker."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and self._is_below(int(entry.name)):
                try:
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
                if marker in line:
                    found.append(int(entry.name))
        return found

    def _is_below(self, pid: int) -> bool:
        while pid > 1:
            if pid == self.head.pid:
                return True
            try:
                pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                return False
        return False

    def memory_pid(self, replica: str) -> int:
        """The process of a memory node, which is nobody's child."""
        found = memory_pid(self.run_dir, replica)
        assert found is not None, f"no memory node {replica}"
        return found

    def end(self) -> None:
        self.head.end()


class Instance(Process):
    """An emulated instance bound by tierd."""

    def __init__(self, tierd: Tierd, name: str, config: Path, tables: dict[int, str], *more: str) -> None:
        options = [part for layer, table in tables.items() for part in ("--table", f"{layer}={table}")]
        super().__init__(tierd.directory, name, [
            "serve", "--tierd", tierd.head.url, "--instance", name, "--tierd-token-file", str(tierd.token_file),
            "--config", str(config), "--port", "0", "--json", "--plan-sessions", "8", "--slo-pct", "400",
            "--drain-s", "0", *options, *more,
        ])  # fmt: skip

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{self.url}/slacktier/report", timeout=30, trust_env=False).json()
        return found

    def tiers(self) -> dict[int, str]:
        status = httpx.get(f"{self.url}/slacktier/status", timeout=30, trust_env=False).json()
        return {layer["layer_id"]: layer["tier"] for layer in status["layers"]}


class Streams:
    """Streams that run against an instance until stop(); `errors` has what went wrong, with its time."""

    def __init__(self, url: str, count: int = 32, tokens: int = 64) -> None:
        self._url, self._tokens = url, tokens
        self._stopped = threading.Event()
        self.errors: list[tuple[float, str]] = []
        self.completed = 0
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(at,), daemon=True) for at in range(count)]
        self._begun_s = time.monotonic()
        for thread in self._threads:
            thread.start()

    def tpot_ms(self) -> float:
        """Wall time per token of one stream, so far."""
        tokens = self.completed * self._tokens / len(self._threads)
        return 1000 * (time.monotonic() - self._begun_s) / max(tokens, 1e-9)

    def _run(self, at: int) -> None:
        with httpx.Client(timeout=60, trust_env=False) as client:
            turn = 0
            while not self._stopped.is_set():
                turn += 1
                fault = self._one(client, [1000 + at, 2000 + turn, 17, 300 + at * turn % 997])
                with self._lock:
                    if fault:
                        self.errors.append((time.monotonic(), fault))
                    else:
                        self.completed += 1
                if fault:
                    time.sleep(0.2)

    def _one(self, client: httpx.Client, prompt: list[int]) -> str:
        body = {"prompt": prompt, "max_tokens": self._tokens, "stream": True, "ignore_eos": True}
        try:
            with client.stream("POST", f"{self._url}/v1/completions", json=body) as answer:
                lines = [line for line in answer.iter_lines() if line]
        except httpx.HTTPError as exc:
            return f"{type(exc).__name__}: {exc}"
        if answer.status_code != 200:
            return lines[0] if lines else str(answer.status_code)
        return "" if lines and lines[-1] == "data: [DONE]" else lines[-1] if lines else "an empty stream"

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(90)


def make_checkpoint(directory: Path, size: str = "40M") -> Path:
    """A V4.1 checkpoint whose every row can be checked; returns its directory."""
    subprocess.run(
        [*SLACKTIER, "make-checkpoint", str(directory), "--size", size, "--seed", "5"], check=True,
        capture_output=True, timeout=120,
    )  # fmt: skip
    return directory


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def memory_pid(run_dir: Path, replica: str) -> int | None:
    """The process that holds that replica in memory, of a head with that run directory."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if b"slacktier_tierd.memory_node.process" not in (entry / "cmdline").read_bytes():
                continue
            if (entry / "fd" / "1").readlink() == run_dir / f"{replica}.log":
                return int(entry.name)
        except OSError:
            continue
    return None
