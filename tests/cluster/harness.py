# SPDX-License-Identifier: Apache-2.0
"""The test cluster from a test: kubectl, objects, waiting; and our own processes in its network."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

HERE: Final = Path(__file__).parent
SCRIPT: Final = HERE / "kubernetes/cluster.sh"
ROOT: Final = HERE.parents[1]
CALL_S: Final = 60


class RefusedError(Exception):
    """kubectl failed; the text is what it said."""


@dataclass
class Cluster:
    """The cluster that SLACKTIER_CLUSTER_STATE names."""

    def run(self, *command: str, stdin: str = "", timeout_s: float = CALL_S) -> str:
        """A command of cluster.sh; raises RefusedError with what it said."""
        done = subprocess.run(
            [str(SCRIPT), *command],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd=ROOT,
            check=False,
        )
        if done.returncode:
            raise RefusedError(done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def kubectl(self, *arguments: str, stdin: str = "", timeout_s: float = CALL_S) -> str:
        return self.run("kubectl", *arguments, stdin=stdin, timeout_s=timeout_s)

    def apply(self, *documents: dict[str, Any]) -> str:
        return self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))

    def get(self, kind: str, name: str, namespace: str = "default") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", kind, name, "-n", namespace, "-o", "json"))
        return found

    def items(self, kind: str, *arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, *arguments, "-o", "json"))["items"]
        return found

    def ready(self, kind: str, name: str, namespace: str = "default") -> tuple[str, str]:
        """(status, reason) of the Ready condition; two empty words before there is one."""
        conditions = self.get(kind, name, namespace).get("status", {}).get("conditions", [])
        return next(((each["status"], each["reason"]) for each in conditions if each["type"] == "Ready"), ("", ""))


def wait_for(what: str, check: Callable[[], Any], *, within_s: float) -> Any:
    """The first true answer of check; fails with the last one."""
    end = time.monotonic() + within_s
    while True:
        try:
            found = check()
        except RefusedError as exc:
            found, said = None, str(exc)
        else:
            said = repr(found)
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {within_s:g} s; last: {said}")
        time.sleep(0.5)


@dataclass
class Process:
    """One of our processes in the cluster's network, with its own process group."""

    command: list[str]
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = [f"{name}={value}" for name, value in self.environment.items()]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(SCRIPT), "exec", "env", *words, *self.command],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=ROOT, start_new_session=True,
            )  # fmt: skip

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """To the whole group, which goes on to exist."""
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Signal the whole group and wait for its leader."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            os.killpg(process.pid, number)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
