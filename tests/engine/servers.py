# SPDX-License-Identifier: Apache-2.0
"""Real SGLang servers on a CPU: started on a free port, waited for, and ended with all that they spawned."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from engine_process import environment, python

HERE: Final = Path(__file__).parent
START_S: Final = 600.0  # a quiet machine takes 20 to 40
END_S: Final = 20.0
LOG_LINES: Final = 40

_FLAGS: Final = (
    "--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch",
    "--grammar-backend", "none", "--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled",
    "--skip-server-warmup", "--max-total-tokens", "16384", "--max-running-requests", "8",
    "--mem-fraction-static", "0.2", "--enable-tokenizer-batch-encode",
)  # fmt: skip
_ENGRAM_VARIABLES: Final = {"SGLANG_EXTERNAL_MODEL_PACKAGE": "small_engram"}
# The shared expert's gate is a Triton kernel, for which there is no compiler here.
_QWEN_VARIABLES: Final = {"TRITON_INTERPRET": "1"}
# Without a bound the pool of linear-attention states takes gigabytes.
_QWEN_FLAGS: Final = ("--max-mamba-cache-size", "24")


class ServerFailedError(RuntimeError):
    """A server that ended or did not answer; the message ends with the last lines of its log."""


@dataclass(frozen=True)
class Shape:
    """How a server runs its batches: what stock and plugin have to share to be compared.

    keeps_prefixes  the prefix tree: what a request finds there of its prompt is not computed again
    """

    tp: int = 1
    overlap: bool = True
    chunk: int = 0
    keeps_prefixes: bool = True

    @property
    def flags(self) -> list[str]:
        return [
            *(() if self.overlap else ("--disable-overlap-schedule",)),
            *(("--chunked-prefill-size", str(self.chunk)) if self.chunk else ()),
            *(("--tp-size", str(self.tp)) if self.tp > 1 else ()),
            *(() if self.keeps_prefixes else ("--disable-radix-cache",)),
        ]

    @property
    def variables(self) -> dict[str, str]:
        # Each rank on a core of its own; over gloo, since NCCL is looked for and not there.
        binding = "|".join(str(rank % (os.cpu_count() or 1)) for rank in range(self.tp))
        return {"SGLANG_CPU_OMP_THREADS_BIND": binding, "SGLANG_NCCL_SO_PATH": "/nonexistent"} if self.tp > 1 else {}

    def __str__(self) -> str:
        prefill = f"chunk{self.chunk}" if self.chunk else "whole"
        name = f"tp{self.tp}-{'overlap' if self.overlap else 'serial'}-{prefill}"
        return name if self.keeps_prefixes else f"{name}-no-prefixes"


@dataclass(frozen=True)
class ServerSpec:
    """family: "engram" or "qwen". folders: first on the path, for a plugin. variables, flags: beyond the usual."""

    release: str
    family: str
    checkpoint: Path
    shape: Shape = Shape()
    folders: tuple[Path, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    def command(self, port: int) -> list[str]:
        is_qwen = self.family == "qwen"
        launch = [str(HERE / "launch_text_only.py")] if is_qwen else ["-m", "sglang.launch_server"]
        return [
            str(python()), *launch, "--model-path", str(self.checkpoint), "--host", "127.0.0.1", "--port", str(port),
            *_FLAGS, *(_QWEN_FLAGS if is_qwen else ()), *self.shape.flags, *self.flags,
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        of_family = _QWEN_VARIABLES if self.family == "qwen" else _ENGRAM_VARIABLES
        made = environment(self.release, HERE / "models", *self.folders)
        return made | of_family | self.shape.variables | dict(self.variables)


class Server:
    """One running server. Its processes share a session, whose id is the first one's process id."""

    def __init__(self, spec: ServerSpec, log: Path, control_port: int = 0) -> None:
        self.spec = spec
        self.log = log
        self.control_port = control_port
        self.port = free_port()
        with log.open("w") as out:
            self.process = subprocess.Popen(
                spec.command(self.port), env=spec.environment(), stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self, limit_s: float = START_S) -> Server:
        """Until it lists its model; raises ServerFailedError if it ends first or takes longer."""
        end_s = time.monotonic() + limit_s
        while time.monotonic() < end_s:
            if self.process.poll() is not None:
                raise ServerFailedError(f"ended with {self.process.returncode} while starting\n{self.last_lines()}")
            with contextlib.suppress(OSError):
                self.get("/v1/models")
                return self
            time.sleep(0.3)
        raise ServerFailedError(f"not ready within {limit_s:.0f} s\n{self.last_lines()}")

    def wait_end(self, limit_s: float) -> int:
        """Exit code of a server that is expected to end by itself; raises ServerFailedError if it does not."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise ServerFailedError(f"still running after {limit_s:.0f} s\n{self.last_lines()}") from None

    def get(self, path: str, limit_s: float = 5.0) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=limit_s) as answer:
            return answer.read()

    def control(self, path: str, rank: int = 0, limit_s: float = 10.0) -> tuple[int, str]:
        """Status and text of the plugin's own endpoint; 0 where nothing listens."""
        url = f"http://127.0.0.1:{self.control_port + rank}{path}"
        try:
            with urllib.request.urlopen(url, timeout=limit_s) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as exc:
            return exc.code, exc.read().decode()
        except OSError as exc:
            return 0, str(exc)

    def post(self, path: str, body: Mapping[str, Any], limit_s: float = 300.0) -> bytes:
        """The answer's bytes; raises ServerFailedError with the error's text where the status is not 200."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=limit_s) as answer:
                return answer.read()
        except urllib.error.HTTPError as exc:
            raise ServerFailedError(f"{path}: {exc.code}: {exc.read().decode(errors='replace')}") from exc

    def last_lines(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])

    def pids(self) -> list[int]:
        """Its processes, the first one included."""
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and self._owns(entry)]

    def _owns(self, entry: Path) -> bool:
        try:
            return os.getsid(int(entry.name)) == self.process.pid
        except ProcessLookupError:
            return False

    def close(self) -> None:
        for number, limit_s in ((signal.SIGTERM, END_S), (signal.SIGKILL, END_S)):
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(limit_s)
            if self._all_gone(limit_s if number == signal.SIGKILL else 1.0):
                return
        raise ServerFailedError(f"processes {self.pids()} outlived SIGKILL")

    def _all_gone(self, limit_s: float) -> bool:
        end_s = time.monotonic() + limit_s
        while self.pids():
            if time.monotonic() > end_s:
                return False
            time.sleep(0.1)
        return True


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serving(spec: ServerSpec, log: Path, *, ready: bool = True, control_port: int = 0) -> Iterator[Server]:
    """A server that is ready, or just started where ready is False; ended at the end."""
    server = Server(spec, log, control_port)
    try:
        yield server.wait_ready() if ready else server
    finally:
        server.close()
