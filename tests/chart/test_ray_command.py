# SPDX-License-Identifier: Apache-2.0
"""The command of Ray's containers: Ray starts again when it ends, and a pod that is told to end does."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from chart_rendering import Rendered, container

# Writes down how it was called; lives until it is told to end, or, while `dies` is there, ends at once.
FAKE_RAY = """#!/bin/bash
trap 'echo ended >>"$STATE/calls"; exit 0' TERM
echo "$@" >>"$STATE/calls"
[ ! -e "$STATE/dies" ] || exit 1
while :; do /bin/sleep 0.05; done
"""


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The worker's command with a stand-in for `ray`, and a `sleep` that does not."""
    for name, text in (("ray", FAKE_RAY), ("sleep", "#!/bin/bash\nexec /bin/sleep 0.01\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "dies").touch()
    found = container(Rendered.of().pod("memory"), "ray-worker")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "STATE": str(tmp_path)}
    with subprocess.Popen([*found["command"], *found["args"]], env=environment, stderr=subprocess.PIPE) as process:
        yield process
        process.kill()


def _calls(tmp_path: Path, count: int) -> list[str]:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        calls = (tmp_path / "calls").read_text().splitlines() if (tmp_path / "calls").exists() else []
        if len(calls) >= count:
            return calls
        time.sleep(0.01)
    raise AssertionError(f"not called {count} times: {calls}")


def test_ray_that_ends_is_started_again_and_term_ends_both(pod: subprocess.Popen[bytes], tmp_path: Path) -> None:
    calls = _calls(tmp_path, 3)
    assert len(set(calls)) == 1
    assert calls[0].startswith("start --address=slacktier-head.slacktier-system.svc:6379 ")
    assert calls[0].endswith(" --block")
    (tmp_path / "dies").unlink()
    _calls(tmp_path, len(_calls(tmp_path, 3)) + 1)
    time.sleep(0.2)  # one that had looked for the file before it went may still be ending
    assert pod.poll() is None
    pod.send_signal(signal.SIGTERM)
    assert pod.wait(10) == 0
    after = (tmp_path / "calls").read_text().splitlines()
    assert after[-1] == "ended"
    assert "ended" not in after[:-1]
