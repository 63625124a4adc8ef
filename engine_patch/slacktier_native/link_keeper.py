# SPDX-License-Identifier: Apache-2.0
"""Keeps a remote source connected: waits in C until its link is down, then reconnects with back-off, off the data path.

Protocol with the core: native/include/st_remote.h. Each transport brings its own `connect`.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from slacktier.errors import SlackTierError
from slacktier_native._lib import library

PROBE_S: Final = 0.5  # an idle link is looked at this often
PAUSE_FIRST_S: Final = 0.02
PAUSE_MAX_S: Final = 1.0  # a server that is back is in use within about this time
_STEADY_S: Final = 1.0  # a link that lasted this long was a good one: the next reconnect is tried at once

_log = logging.getLogger(__name__)


class LinkKeeper:
    """A thread that keeps one remote source's link up.

    label    the source, for the log
    handle   the C source; must outlive close()
    connect  makes a connection, gives it to the source and sets its link up; raises SlackTierError or OSError
    """

    def __init__(self, label: str, handle: int, connect: Callable[[], None]) -> None:
        self._label, self._handle, self._connect = label, handle, connect
        self._stop = threading.Event()
        self._pause_s = 0.0
        self._up_since = time.monotonic()
        self.reconnects = 0
        self.last_error = ""
        self._thread = threading.Thread(target=self._run, name=f"link {label}", daemon=True)
        self._thread.start()

    @property
    def down_reason(self) -> str:
        """Why the link is down; empty while it is up."""
        code = int(library().st_remote_state(self._handle))
        if code == 0:
            return ""
        return self.last_error or errno.errorcode.get(-code, str(-code))

    def _run(self) -> None:
        while (rc := library().st_remote_wait_down(self._handle, int(PROBE_S * 1e9))) != -errno.ECANCELED:
            if rc == 1:
                self._reconnect()

    def _reconnect(self) -> None:
        code = -int(library().st_remote_state(self._handle))
        self.last_error = errno.errorcode.get(code, str(code))
        _log.warning("%s: link is down: %s", self._label, self.last_error)
        if time.monotonic() - self._up_since > _STEADY_S:
            self._pause_s = 0.0
        while not self._stop.wait(self._pause_s):
            self._pause_s = min(PAUSE_MAX_S, max(PAUSE_FIRST_S, 2 * self._pause_s))
            try:
                self._connect()
            except (SlackTierError, OSError) as exc:
                self.last_error = str(exc)
                continue
            self._up_since = time.monotonic()
            self.reconnects += 1
            _log.warning("%s: link is up again", self._label)
            return

    def close(self) -> None:
        """End the thread; idempotent. A connection that is being made is waited for."""
        self._stop.set()
        library().st_remote_cancel(self._handle)
        self._thread.join()
