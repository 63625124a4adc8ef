# SPDX-License-Identifier: Apache-2.0
"""What SGLang loads by the entry point `sglang.srt.plugins`: decides in each of the engine's processes what to do.

SGLang logs an Exception of a plugin and serves on with its own table, so whatever goes wrong here ends the process
instead (SystemExit is no Exception). At import the standard library only: this runs in the HTTP server, in each
scheduler and in the detokenizer.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys

CONFIG_VARIABLE = "SLACKTIER_CONFIG"
_log = logging.getLogger("slacktier")


def register() -> None:
    """Called once in each process. Without SLACKTIER_CONFIG nothing is changed; with it, all of it works or nothing."""
    if not os.environ.get(CONFIG_VARIABLE):
        _log.info("slacktier: %s is not set, so this engine keeps its own tables", CONFIG_VARIABLE)
        return
    try:
        _register()
    except BaseException as exc:
        _end(exc)


def _register() -> None:
    from slacktier_engine.settings import load_settings
    from slacktier_engine.supported import check_version

    settings = load_settings(os.environ[CONFIG_VARIABLE])
    version = check_version(settings.sglang_versions)
    if not _may_run_a_model():
        return
    from slacktier_engine import hooks

    hooks.install(settings)
    _log.info("slacktier: lookup tables come from SlackTier (sglang %s)", version)


def _may_run_a_model() -> bool:
    """Not the process that serves HTTP, nor the detokenizer: hooks there would cost seconds of imports for nothing.

    Only the two that are known not to are left out.
    """
    if multiprocessing.parent_process() is None:
        return False
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "run_detokenizer_process":
            return False
    return True


def _end(exc: BaseException) -> None:
    """One clear line, then no server: bad input ends with 2, anything else with 1."""
    from slacktier.errors import ConfigError, SlackTierError

    if isinstance(exc, SystemExit | KeyboardInterrupt):
        raise exc
    message = str(exc) if isinstance(exc, SlackTierError) else f"{type(exc).__name__}: {exc}"
    print(f"slacktier: this server cannot use its tier: {message}", file=sys.stderr, flush=True)
    if isinstance(exc, SlackTierError) and exc.hint:
        print(f"hint: {exc.hint}", file=sys.stderr, flush=True)
    if not isinstance(exc, SlackTierError):
        _log.error("slacktier: register failed", exc_info=exc)
    raise SystemExit(2 if isinstance(exc, ConfigError) else 1) from exc
