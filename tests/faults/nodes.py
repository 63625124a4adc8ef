# SPDX-License-Identifier: Apache-2.0
"""Memory nodes for the tests: row servers in processes that can be killed, on loopback or behind their own link."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from types import TracebackType

from system_tools import run_tool

from slacktier_native.core import RowsSpec

SERVER = Path(__file__).with_name("row_server.py")
TOKEN = b"0123456789abcdef0123456789abcdef"


class Node:
    """A row server in a process of its own; namespace: in which network it lives."""

    def __init__(self, token_file: Path, region: Path, *, port: int = 0, host: str = "127.0.0.1", namespace: str = ""):
        self._token_file, self.host = token_file, host
        inside = ["ip", "netns", "exec", namespace] if namespace else []
        command = [*inside, sys.executable, SERVER, host, str(port), token_file, region]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        self.port = int(self._process.stdout.readline())

    def spec(self, timeout_s: float = 0.5) -> RowsSpec:
        return RowsSpec(self.host, self.port, self._token_file, 1, timeout_s=timeout_s)

    def kill(self) -> None:
        """-9: nothing is said to anyone."""
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """Its kernel still takes what is sent to it, and nothing ever comes back."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def __enter__(self) -> Node:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
        assert self._process.stdout
        self._process.stdout.close()


class Network:
    """A network namespace behind a veth pair: a node in it is as far away as another machine, for the kernel."""

    def __init__(self) -> None:
        name = f"st{uuid.uuid4().hex[:8]}"
        number = os.getpid() % 200 + 20
        self.namespace, self._near, self._far = name, f"{name}n", f"{name}f"
        self.address, self._near_address = f"10.213.{number}.2", f"10.213.{number}.1"
        run_tool("ip", "netns", "add", name)
        run_tool("ip", "link", "add", self._near, "type", "veth", "peer", "name", self._far, "netns", name)
        run_tool("ip", "address", "add", f"{self._near_address}/30", "dev", self._near)
        run_tool("ip", "link", "set", self._near, "up")
        self._inside("address", "add", f"{self.address}/30", "dev", self._far)
        self._inside("link", "set", "lo", "up")
        self._inside("link", "set", self._far, "up")

    def _inside(self, *command: str) -> None:
        run_tool("ip", "-n", self.namespace, *command)

    def link_down(self) -> None:
        self._inside("link", "set", self._far, "down")

    def link_up(self) -> None:
        self._inside("link", "set", self._far, "up")

    def swallow(self) -> None:
        """The link stays up; whatever the far side answers goes nowhere."""
        self._inside("route", "add", "blackhole", f"{self._near_address}/32")

    def deliver(self) -> None:
        self._inside("route", "delete", "blackhole", f"{self._near_address}/32")

    def close(self) -> None:
        run_tool("ip", "link", "delete", self._near)
        run_tool("ip", "netns", "delete", self.namespace)
