# SPDX-License-Identifier: Apache-2.0
"""Makes a part of the plugin raise what it would never raise by itself: ENGINE_FAULT names it.

register  while SGLang loads the plugin
hook      the first real step's lookup, after warm-up
read      the first rows that are gathered, which is the warm-up's
"""

from __future__ import annotations

import os
from typing import Any, NoReturn

from after_import import after_import

NAME = os.environ["ENGINE_FAULT"]


def fail(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError(f"made to fail: {NAME}")


after_import(
    {
        "register": {"slacktier_engine.plugin": {"_register": fail}},
        "hook": {"slacktier_engine.runtime": {"EngineTier.issue": fail}},
        "read": {"slacktier_engine.cpu_step": {"CpuStepPath.join": fail}},
    }[NAME]
)
