# SPDX-License-Identifier: Apache-2.0
"""What the Python fuzz targets share."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType

import atheris


def fuzz(one_input: Callable[[bytes], None], *parsers: ModuleType) -> None:
    """Run one_input until libFuzzer's limits in argv are reached; what it raises is a finding.

    parsers  modules whose functions lead the fuzzer: it keeps the inputs that reach something new in them
    """
    for module in parsers:
        for _, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__:
                atheris.instrument_func(function)
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
