# SPDX-License-Identifier: Apache-2.0
"""The step path's CPU side: the thread that serves ids published by a GPU. Protocol: native/include/st_step_path.h.

Neighbours: slacktier_engine owns the memory and the kernels on the other side; this module sees addresses only.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from slacktier.errors import ConfigError, ContractError, DeadlineMissedError, SlackTierError, TierUnavailableError
from slacktier_native._lib import CStepLayer, CStepSettings, CStepStatus, library
from slacktier_native.core import LookupCore
from slacktier_native.placement import threads_on

MAIL_BYTES: Final = 128
MAIL_READY: Final = 64  # offset of the flag
ANSWER_HEAD_BYTES: Final = 64  # refs follow
RECORDS_KEPT: Final = 8192

# st_step_record; instants in ns since the thread saw the step's ids, counts of the first two layers.
RECORD: Final = np.dtype(
    [
        (name, np.uint64)
        for name in ("step", "first_read_ns", "first_resolved_ns", "resolved_ns", "first_ready_ns", "ready_ns")
    ]
    + [(name, np.uint32, (2,)) for name in ("owned", "hits", "repeats", "misses", "pages", "spills")]
)


def answer_lines(lookups: int) -> int:
    """Offset of the lines in the answer to so many lookups: st_answer_lines."""
    return (ANSWER_HEAD_BYTES + 4 * lookups + 63) // 64 * 64


@dataclass(frozen=True, slots=True)
class StepSettings:
    """timeout_s    of a step: then it fails by name
    spin_ms       how long the thread spins for the next step before it sleeps: longer than a step of a busy server
    idle_poll_ms  asleep, it looks this often; arm() wakes it at once
    cpus          where the thread may run; empty: anywhere. A core of its own keeps its caches warm
    """

    timeout_s: float = 10.0
    spin_ms: float = 50.0
    idle_poll_ms: float = 1.0
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StepMemory:
    """One layer's addresses, pinned and mapped for the device; sizes as in st_step_layer."""

    mail: int
    row_ids: int
    answer: int
    line_bytes: int


@dataclass(frozen=True, slots=True)
class StepStatus:
    """steps served so far, failed among them; error: 0 or -errno of the first failed one since clear(), on layer."""

    steps: int
    failed_steps: int
    error: int
    layer_index: int
    failed_step: int
    sleeps: int


class StepPath:
    """Drives a core from published ids; the core's begin, wait and end are not for others meanwhile."""

    def __init__(self, core: LookupCore, layers: Sequence[StepMemory], settings: StepSettings) -> None:
        if len(layers) != len(core.layer_ids):
            raise ConfigError(f"step path: memory of {len(layers)} layers, the core has {len(core.layer_ids)}")
        self._core = core
        raw = (CStepLayer * len(layers))(*(CStepLayer(m.mail, m.row_ids, m.answer, m.line_bytes, 0) for m in layers))
        times = CStepSettings(
            int(settings.timeout_s * 1e9), int(settings.spin_ms * 1e6), int(settings.idle_poll_ms * 1e6)
        )
        handle = ctypes.c_void_p()
        with threads_on(settings.cpus):
            rc = library().st_step_path_open(core.handle, raw, ctypes.byref(times), ctypes.byref(handle))
        if rc < 0 or handle.value is None:
            raise ConfigError(f"step path: {os.strerror(-rc)}")
        self._handle: int | None = handle.value

    def arm(self) -> None:
        """Steps are about to come: wake the thread if it sleeps."""
        library().st_step_path_arm(self._require())

    @contextmanager
    def between_steps(self, timeout_s: float = 10.0) -> Iterator[LookupCore]:
        """The core, to change its sources or cache; a step that comes meanwhile waits.

        raises  DeadlineMissedError if a step is under way all that time
        """
        if library().st_step_path_pause(self._require(), int(timeout_s * 1e9)) < 0:
            raise DeadlineMissedError(
                f"step path: a step is still under way after {timeout_s:g} s",
                tier="", operation="pause", target="step path", errno=errno.ETIMEDOUT,
            )  # fmt: skip
        try:
            yield self._core
        finally:
            library().st_step_path_resume(self._require())

    def status(self) -> StepStatus:
        raw = CStepStatus()
        library().st_step_path_status(self._require(), ctypes.byref(raw))
        return StepStatus(raw.steps, raw.failed_steps, raw.error, raw.layer, raw.failed_step, raw.sleeps)

    def check(self) -> None:
        """Raise what the first failed step since the last check failed with; its rows were poison, never wrong."""
        status = self.status()
        if status.error == 0:
            return
        library().st_step_path_clear(self._require())
        raise self._error(status)

    def _error(self, status: StepStatus) -> SlackTierError:
        where = f"layer {self._core.layer_ids[status.layer_index]} step {status.failed_step}"
        if status.error == -errno.ERANGE:
            return ContractError(f"{where}: a row id is outside the table", hint="hasher and table must be one model's")
        if status.error == -errno.E2BIG:
            return ConfigError(f"{where}: more lookups than the {self._core.lookups_max} that there is room for")
        if status.error == -errno.EBUSY:
            return TierUnavailableError(
                f"{where}: reads of a step that timed out are still in flight",
                tier="", operation="read", target="", errno=errno.EBUSY,
            )  # fmt: skip
        return self._core.step_error(status.error, status.layer_index)

    def records(self) -> npt.NDArray[np.void]:
        """The newest records, oldest first, [n] RECORD."""
        out = np.zeros(RECORDS_KEPT, RECORD)
        count = library().st_step_path_records(self._require(), out.ctypes.data, RECORDS_KEPT)
        return out[:count]

    def close(self) -> None:
        """Stop the thread; idempotent. The memory stays in use until the core is closed."""
        if self._handle is not None:
            library().st_step_path_close(self._handle)
            self._handle = None

    def _require(self) -> int:
        if self._handle is None:
            raise ConfigError("the step path is closed")
        return self._handle
