# SPDX-License-Identifier: Apache-2.0
"""Compiles the native library while the package is built; everything else stands in pyproject.toml.

SLACKTIER_NATIVE=skip leaves it out, for a machine without a C compiler: what needs no table still works there.
"""

import os
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


class BuildNative(build_py):
    """build_py that first runs the native Makefile, whose output is package data of slacktier_native."""

    def run(self) -> None:
        if os.environ.get("SLACKTIER_NATIVE") != "skip":
            subprocess.run(["make", "-s", "-C", str(ROOT / "engine_patch/native"), "lib"], check=True)
        super().run()


class PlatformDistribution(Distribution):
    """The wheel holds a shared library, so it is not pure."""

    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildNative}, distclass=PlatformDistribution)
