# SPDX-License-Identifier: Apache-2.0
"""One line for every change and every refusal: who, what, which resource, outcome. JSON on a logger of its own."""

from __future__ import annotations

import json
import logging
from typing import Any

from slacktier_tierd.head.tokens import Principal

LOGGER = logging.getLogger("slacktier.audit")


def audit(action: str, *, by: Principal | None, kind: str, name: str, outcome: str, **fields: Any) -> None:
    """Write one line; values are names, numbers and reasons, never tokens or addresses."""
    who = {"role": by.role.value, "by": by.name} if by is not None else {"role": "tierd", "by": "tierd"}
    LOGGER.info(json.dumps({"audit": action, **who, "kind": kind, "name": name, "outcome": outcome, **fields}))
