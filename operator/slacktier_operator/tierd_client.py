# SPDX-License-Identifier: Apache-2.0
"""Calls to tierd's head. A failure is a TierdError with what was asked for; the caller tries again later."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

from slacktier.api import ApiError, Change, ErrorBody, Kind, Part
from slacktier.errors import SlackTierError
from slacktier_operator.settings import OperatorSettings

_CALL_S = 10.0
_SILENT_S = 60.0  # a watch that says nothing for so long is opened again
Model = TypeVar("Model", bound=BaseModel)


class TierdError(SlackTierError):
    """tierd could not be reached, or refused; `answer` is its own error where it gave one."""

    def __init__(self, message: str, answer: ApiError | None = None) -> None:
        super().__init__(message, hint=answer.hint if answer else "")
        self.answer = answer


class TierdClient:
    """One session to the head; close() ends it."""

    def __init__(self, settings: OperatorSettings) -> None:
        self._settings = settings
        context = ssl.create_default_context(cafile=str(settings.ca_file)) if settings.ca_file else None
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context if context else True, limit=32)
        )  # fmt: skip

    async def close(self) -> None:
        await self._session.close()

    async def put(self, kind: Kind, name: str, spec: Part) -> dict[str, Any]:
        """Make the resource so; the resource as it then is."""
        return await self._call("PUT", f"/v1/{kind.value}/{name}", spec.model_dump(mode="json", exclude_none=True))

    async def delete(self, kind: Kind, name: str) -> None:
        await self._call("DELETE", f"/v1/{kind.value}/{name}")

    async def watch(self, version: int | None, opened: Callable[[], None]) -> AsyncIterator[Change]:
        """Changes from that version on, or everything first; ends when the connection does.

        opened  called once tierd has taken the watch, before any change
        """
        query = f"?version={version}" if version is not None else ""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CALL_S, sock_read=_SILENT_S)
        url = f"{self._settings.tierd_url}/v1/watch{query}"
        try:
            async with self._session.get(url, headers=self._headers(), timeout=timeout) as answer:
                if answer.status != 200:
                    raise TierdError(f"tierd: watch: HTTP {answer.status}")
                opened()
                async for line in answer.content:
                    if line.startswith(b"data:"):
                        yield Change.model_validate_json(line[5:])
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise TierdError(f"tierd: watch: {_said(exc)}") from exc
        except ValidationError as exc:
            raise TierdError(f"tierd: watch: an event that is none: {exc.errors()[0]['msg']}") from exc

    def _headers(self) -> dict[str, str]:
        token = self._settings.token_file.read_text(encoding="utf-8").strip()
        return {"Authorization": f"Bearer {token}"}

    async def _call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        what = f"tierd: {method} {path}"
        timeout = aiohttp.ClientTimeout(total=_CALL_S)
        url = self._settings.tierd_url + path
        try:
            async with self._session.request(
                method, url, json=body, headers=self._headers(), timeout=timeout
            ) as answer:
                text = await answer.text()
                if answer.status < 300:
                    found: dict[str, Any] = json.loads(text) if text else {}
                    return found
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as exc:
            raise TierdError(f"{what}: {_said(exc)}") from exc
        try:
            error = ErrorBody.model_validate_json(text).error
        except ValidationError:
            raise TierdError(f"{what}: HTTP {answer.status}") from None
        raise TierdError(f"{what}: {error.message}", error)


def _said(exc: BaseException) -> str:
    return str(exc) or type(exc).__name__
