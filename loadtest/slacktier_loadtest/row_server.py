# SPDX-License-Identifier: Apache-2.0
"""`slacktier serve-rows` as a child process: the other end of the arm `tcp`, on this machine, over loopback."""

from __future__ import annotations

import json
import os
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slacktier.errors import SlackTierError
from slacktier_cli.demo.tables import StagedTable

_START_S: Final = 120.0
_STOP_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class RowServerProcess:
    """Where it listens, and the file with the token that its clients prove to know."""

    process: subprocess.Popen[bytes]
    address: str
    token_file: Path
    log: Path

    def check(self) -> None:
        """Raises SlackTierError if it has ended."""
        code = self.process.poll()
        if code is not None:
            raise SlackTierError(f"the row server ended with exit code {code}", hint=f"its log is {self.log}")


@contextmanager
def running_row_server(tables: Sequence[StagedTable], out: Path) -> Iterator[RowServerProcess]:
    """The tables in the memory of a process of its own; it ends when the block is left."""
    token_file, log = out / "rows.token", out / "rows.log"
    token_file.unlink(missing_ok=True)
    with os.fdopen(os.open(token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    command = [
        sys.executable, "-c", "from slacktier_cli.main import main; main()", "serve-rows",
        *(str(table.path) for table in tables), "--token-file", str(token_file), "--listen", "127.0.0.1:0", "--json",
    ]  # fmt: skip
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
    try:
        yield RowServerProcess(process, _address(process, log), token_file, log)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
        token_file.unlink(missing_ok=True)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """From the line that it prints once the tables are loaded."""
    deadline = time.monotonic() + _START_S
    while process.stdout is not None and time.monotonic() < deadline:
        if select.select([process.stdout], [], [], 0.1)[0]:
            line = process.stdout.readline()
            if not line:
                break
            return str(json.loads(line)["address"])
    said = log.read_text(encoding="utf-8", errors="replace").strip()[-500:]
    raise SlackTierError(f"the row server did not start: {said or 'it said nothing'}", hint=f"its log is {log}")
