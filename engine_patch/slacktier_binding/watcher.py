# SPDX-License-Identifier: Apache-2.0
"""Follows an instance's access: the newest one that can be served by, from the start until the process ends.

Whatever happens to the head, what is in force stays in force: an access without a binding, or no answer, changes
nothing. The watcher's thread sleeps in a call that the head answers when something changes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from slacktier.api import Access, InstanceSpec
from slacktier.errors import ConfigError, SlackTierError, TierUnavailableError
from slacktier_binding.client import TierdClient, TierdRefusedError, TierdUnreachableError

WAIT_S: Final = 25.0
RETRY_S: Final = (0.2, 5.0)  # first and longest pause after a failed call
_NOT_FOUND: Final = 404


class AccessWatcher:
    """Keeps an instance known to the head and hands each new access to `apply`.

    apply   called from the watcher's thread with each access that is bound; whatever it raises of ours is kept as the
            message of the next reports, and the same access is handed over again later
    """

    def __init__(
        self, client: TierdClient, spec: InstanceSpec, apply: Callable[[Access], None], *, wait_s: float = WAIT_S
    ) -> None:
        self._client, self._spec, self._apply, self._wait_s = client, spec, apply, wait_s
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.in_force = 0
        self.message = ""

    def first(self, timeout_s: float, say: Callable[[str], None] = lambda _: None) -> Access:
        """Make the instance known and wait until it is bound; it then counts as in force.

        say     told whenever what is waited for changes
        raises  ConfigError where the head refuses the instance, TierUnavailableError when the time is up
        """
        deadline, said, pause = time.monotonic() + timeout_s, "", RETRY_S[0]
        why = "the head has not answered"
        while time.monotonic() < deadline:
            try:
                self._client.put_instance(self._spec)
                found = self._client.access()
                while not found.bound and time.monotonic() < deadline:
                    why = found.message
                    if why != said:
                        said = why
                        say(why)
                    left = max(0.1, min(self._wait_s, deadline - time.monotonic()))
                    found = self._client.access(version=found.version, wait_s=left)
                if found.bound:
                    self.in_force = found.version
                    return found
            except TierdRefusedError as exc:
                if exc.status == _NOT_FOUND:
                    self._stopped.wait(pause)  # a head that lost its state while we waited: it is told anew
                    continue
                raise ConfigError(str(exc), hint=exc.hint) from exc
            except TierdUnreachableError as exc:
                why = str(exc)
                if why != said:
                    said = why
                    say(why)
                self._stopped.wait(pause)
                pause = min(2 * pause, RETRY_S[1])
        raise TierUnavailableError(
            f"instance {self._client.address.instance}: not bound within {timeout_s:g} s: {why}",
            tier="tierd", operation="bind", target=self._client.address.url,
        )  # fmt: skip

    def start(self) -> None:
        """Follow changes on a thread of its own from here on."""
        self._thread = threading.Thread(target=self._run, name="tierd-watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pause, seen = RETRY_S[0], self.in_force
        while not self._stopped.is_set():
            try:
                found = self._client.access(version=seen, wait_s=self._wait_s)
                pause = RETRY_S[0]
                if self._stopped.is_set() or found.version == seen:
                    continue
                seen = self._take(found)
            except TierdRefusedError as exc:
                self._note(str(exc))
                if exc.status == _NOT_FOUND:
                    self._say_again()
                pause = self._rest(pause)
            except SlackTierError as exc:
                self._note(str(exc))
                pause = self._rest(pause)

    def _take(self, found: Access) -> int:
        """Hand over an access that can be served by; returns the version that counts as seen."""
        if not found.bound:
            self._note(found.message)
            return found.version
        self._apply(found)
        self.in_force = found.version
        self._note("")
        return found.version

    def _say_again(self) -> None:
        """A head that has lost its state, or given this instance up, is told anew."""
        try:
            self._client.put_instance(self._spec)
        except SlackTierError as exc:
            self._note(str(exc))

    def _rest(self, pause: float) -> float:
        self._stopped.wait(pause)
        return min(2 * pause, RETRY_S[1])

    def _note(self, message: str) -> None:
        self.message = message

    def stop(self) -> None:
        """End the thread; a call in flight is left to its time-out."""
        self._stopped.set()
