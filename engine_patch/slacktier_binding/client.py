# SPDX-License-Identifier: Apache-2.0
"""Calls to tierd's head from a serving instance. Nothing here is on the data path."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from slacktier.api import (
    PAGE_LIMIT_MAX,
    Access,
    ApiError,
    ErrorBody,
    InstanceSpec,
    Kind,
    Part,
    Report,
    SeedAccess,
    SeedSpec,
)
from slacktier.errors import ConfigError, SlackTierError

CALL_S: Final = 10.0
_ANSWER_BYTES_MAX: Final = 16 << 20
Model = TypeVar("Model", bound=BaseModel)


class TierdUnreachableError(SlackTierError):
    """The head did not answer, or not now; what is in force stays in force."""


class TierdRefusedError(SlackTierError):
    """The head answered no; `error` says why, with numbers where there are some."""

    def __init__(self, error: ApiError, status: int) -> None:
        super().__init__(f"tierd: {error.message}", hint=error.hint)
        self.error, self.status = error, status


@dataclass(frozen=True, slots=True)
class TierdAddress:
    """Where the head is and who asks.

    token_file  read for each call: a service account's token is renewed while the process runs
    ca_file     what an https head's certificate is checked against; None: the system's
    """

    url: str
    token_file: Path
    instance: str
    ca_file: Path | None = None

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"tierd URL {self.url!r}: expected http://HOST:PORT or https://HOST:PORT")

    def token(self) -> str:
        """Raises ConfigError where the file is not there or holds no token."""
        try:
            found = self.token_file.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as exc:
            raise ConfigError(f"token file {self.token_file}: {exc}") from exc
        if not found or len(found.split()) != 1:
            raise ConfigError(f"token file {self.token_file}: holds no single token")
        return found


class TierdClient:
    """The calls that an instance makes. Each raises TierdUnreachableError or TierdRefusedError."""

    def __init__(self, address: TierdAddress) -> None:
        self.address = address
        self._context = None
        if address.url.startswith("https://"):
            try:
                self._context = ssl.create_default_context(cafile=str(address.ca_file) if address.ca_file else None)
            except OSError as exc:
                raise ConfigError(f"CA file {address.ca_file}: {exc}") from exc

    def put_instance(self, spec: InstanceSpec) -> None:
        """Say what this instance needs."""
        self._put(f"instances/{self.address.instance}", spec)

    def delete_instance(self) -> None:
        """Say that it is gone; its binding goes with it."""
        self._call("DELETE", f"instances/{self.address.instance}", None, CALL_S)

    def access(self, *, version: int | None = None, wait_s: float = 0.0) -> Access:
        """How to read its rows; with `version` as soon as it differs, or after wait_s at most."""
        query = "" if version is None else f"?version={version}&wait_s={wait_s:g}"
        content = self._call("GET", f"instances/{self.address.instance}/access{query}", None, CALL_S + wait_s)
        return _parse(Access, content)

    def report(self, report: Report) -> None:
        """What it measured in an interval."""
        self._put(f"instances/{self.address.instance}/report", report)

    def put_seed(self, spec: SeedSpec) -> None:
        """Where its seed server listens; for a prefill instance."""
        self._put(f"seeds/{self.address.instance}", spec)

    def seed(self, prefill_instance: str) -> SeedAccess:
        """A prefill instance's seed server; for a bound decode instance."""
        name = urllib.parse.quote(prefill_instance, safe="")
        return _parse(SeedAccess, self._call("GET", f"instances/{name}/seed", None, CALL_S))

    def everything(self) -> dict[str, list[dict[str, Any]]]:
        """All resources by kind, as lists of what a GET answers; for status."""
        return {kind.value: self._all(kind) for kind in Kind}

    def _all(self, kind: Kind) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        after = ""
        while True:
            content = self._call("GET", f"{kind.value}?limit={PAGE_LIMIT_MAX}{after}", None, CALL_S)
            page = json.loads(content)
            items += page["items"]
            if page["next"] is None:
                return items
            after = f"&after={urllib.parse.quote(page['next'], safe='')}"

    def _put(self, path: str, body: Part) -> None:
        self._call("PUT", path, body.model_dump_json().encode(), CALL_S)

    def _call(self, method: str, path: str, body: bytes | None, timeout_s: float) -> bytes:
        request = urllib.request.Request(  # noqa: S310 - the address checks the scheme
            f"{self.address.url.rstrip('/')}/v1/{path}", data=body, method=method,
            headers={"Authorization": f"Bearer {self.address.token()}", "Content-Type": "application/json"},
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=timeout_s, context=self._context) as answer:  # noqa: S310
                content: bytes = answer.read(_ANSWER_BYTES_MAX)
                return content
        except urllib.error.HTTPError as exc:
            with exc:
                raise _refusal(exc.code, exc.read(_ANSWER_BYTES_MAX)) from exc
        except (OSError, http.client.HTTPException) as exc:
            reason = getattr(exc, "reason", exc)
            raise TierdUnreachableError(f"tierd at {self.address.url}: {reason}") from exc


def _refusal(status: int, content: bytes) -> SlackTierError:
    try:
        error = ErrorBody.model_validate_json(content).error
    except ValidationError:
        return TierdUnreachableError(f"tierd: HTTP {status}, which is no answer of tierd's")
    if status in (408, 429) or status >= 500:
        return TierdUnreachableError(f"tierd: {error.message}", hint=error.hint)
    return TierdRefusedError(error, status)


def _parse(model: type[Model], content: bytes) -> Model:
    try:
        return model.model_validate_json(content)
    except ValidationError as exc:
        what: Any = exc.errors()[0]["msg"]
        raise TierdUnreachableError(f"tierd: its answer is no {model.__name__}: {what}") from exc
