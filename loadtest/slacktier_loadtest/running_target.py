# SPDX-License-Identifier: Apache-2.0
"""A server that runs already, as an arm: what puts the arm in force on it before a block."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from slacktier.errors import ConfigError, SlackTierError
from slacktier_cli.demo.server_report import ServerReport
from slacktier_loadtest.client import Target
from slacktier_loadtest.scenario import Switch, TargetSpec
from slacktier_loadtest.servers import until

_IN_FORCE_S: Final = 120.0  # an instance reports every few seconds


class RunningTarget:
    """A server that runs already, and what puts this arm in force on it."""

    def __init__(self, spec: TargetSpec, headers: Mapping[str, str]) -> None:
        self._spec = spec
        self._targets = tuple(Target.parse(url, headers) for url in spec.urls)

    @property
    def urls(self) -> tuple[str, ...]:
        return self._spec.urls

    def enter(self) -> None:
        for switch in self._spec.switch:
            self._take(switch)
        if self._spec.settle_s:
            time.sleep(self._spec.settle_s)

    def _take(self, switch: Switch) -> None:
        if switch.file is not None:
            write_whole(switch.file, switch.content or {})
            return
        headers = _bearer(switch.token_file)
        if switch.url.startswith("/"):
            for target in self._targets:
                own = Target(target.host, target.port, target.prefix, target.is_tls, {**target.headers, **headers})
                own.call(switch.method, switch.url, switch.body)
            return
        base, path = split_url(switch.url)
        head = Target.parse(base, headers)
        head.call(switch.method, path, switch.body)
        if switch.is_binding:
            until(_IN_FORCE_S, f"{switch.url} in force", lambda: _is_in_force(head.call("GET", path)), self.check)

    def reports(self) -> tuple[ServerReport, ...]:
        return ()

    def check(self) -> None:
        return


def _is_in_force(binding: Mapping[str, Any]) -> bool:
    """Whether tierd has made its newest binding an access, and the instance has said that it reads by it."""
    status = binding["status"]
    is_newest = status["observed_generation"] == binding["generation"]
    return bool(is_newest and status["in_force_version"] == status["access_version"] != 0)


def split_url(url: str) -> tuple[str, str]:
    """`http://host:port` and the rest with its slash."""
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    if not separator or not host or not slash:
        raise ConfigError(f"switch: url {url!r}: expected http://host:port/path, or /path on the arm's own server")
    return f"{scheme}://{host}", f"/{path}"


def write_whole(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file in one step, so that whoever watches it never reads half of it."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        part.replace(path)
    except OSError as exc:
        part.unlink(missing_ok=True)
        raise SlackTierError(f"switch: {path}: {exc.strerror or exc}") from exc


def _bearer(token_file: Path | None) -> dict[str, str]:
    if token_file is None:
        return {}
    try:
        return {"Authorization": f"Bearer {token_file.read_text(encoding='utf-8').strip()}"}
    except OSError as exc:
        raise ConfigError(f"switch: token_file {token_file}: {exc.strerror or exc}") from exc


def model_of(url: str, headers: Mapping[str, str]) -> str:
    """The first model that the server says it serves."""
    answer = Target.parse(url, headers).call("GET", "/v1/models")
    try:
        return str(answer["data"][0]["id"])
    except (KeyError, IndexError, TypeError) as exc:
        raise SlackTierError(
            f"GET /v1/models on {url}: no model in {str(answer)[:200]}", hint="--model names it"
        ) from exc
