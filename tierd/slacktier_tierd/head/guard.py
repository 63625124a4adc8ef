# SPDX-License-Identifier: Apache-2.0
"""What stands before the routes: who asks, how often, how much, how slowly. An ASGI application around another.

A call that is refused here has read at most `BODY_BYTES_MAX` of a body and changed nothing.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from slacktier.api import BODY_BYTES_MAX, ApiError, ErrorBody, ErrorCode
from slacktier_tierd.head.audit import audit
from slacktier_tierd.head.limits import RateLimit
from slacktier_tierd.head.tokens import TOKEN_BYTES_MAX, Principal, Role, TokenReviewUnavailableError, Tokens

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOGGER = logging.getLogger("slacktier.tierd")
OPEN_PATHS: Final = frozenset({"/", "/healthz", "/readyz", "/metrics", "/openapi.json", "/page.js", "/page.css"})
_WRITES: Final = frozenset({"PUT", "DELETE", "POST", "PATCH"})


class Refused(Exception):  # noqa: N818 - it is an answer, not a fault
    """An answer to send instead of calling the application."""

    def __init__(self, status: int, code: ErrorCode, message: str, *, hint: str = "", retry_s: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.code, self.hint, self.retry_s = status, code, hint, retry_s


def error_bytes(code: ErrorCode, message: str, **more: Any) -> bytes:
    return ErrorBody(error=ApiError(code=code, message=message[:8192], **more)).model_dump_json().encode()


class Guard:
    """Authentication, rates, sizes and request ids around the application."""

    def __init__(self, app: App, tokens: Tokens, limit: RateLimit, *, body_timeout_s: float) -> None:
        self._app, self._tokens, self._limit, self._body_timeout_s = app, tokens, limit, body_timeout_s
        self.refusals: dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["request_id"] = uuid.uuid4().hex
        try:
            if scope["path"] not in OPEN_PATHS:
                principal = await self._principal(scope)
                scope["principal"] = principal
                self._check_rate(principal)
                self._check_role(scope, principal)
                receive = await self._read_body(scope, receive)
        except Refused as refused:
            await self._refuse(scope, send, refused)
            return
        await self._app(scope, receive, send)

    async def _principal(self, scope: Scope) -> Principal:
        values = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, token = (values[0] if len(values) == 1 else b"").partition(b" ")
        if scheme.lower() != b"bearer" or not 0 < len(token) <= TOKEN_BYTES_MAX:
            raise Refused(401, ErrorCode.UNAUTHORIZED, "a bearer token is needed", hint="Authorization: Bearer TOKEN")
        try:
            text = token.decode("ascii").strip()
        except UnicodeDecodeError as exc:
            raise Refused(401, ErrorCode.UNAUTHORIZED, "the token is not ASCII") from exc
        try:
            found = await asyncio.to_thread(self._tokens.principal, text)
        except TokenReviewUnavailableError as exc:
            raise Refused(503, ErrorCode.UNAVAILABLE, str(exc), retry_s=2.0) from exc
        if found is None:
            # By address, so that guessing is slow whatever is guessed.
            self._wait(("guess", (scope.get("client") or ("",))[0]))
            raise Refused(401, ErrorCode.UNAUTHORIZED, "the token is not valid, or no longer")
        return found

    def _check_rate(self, principal: Principal) -> None:
        self._wait((principal.role, principal.name))

    def _wait(self, key: object) -> None:
        wait_s = self._limit.wait_s(key)
        if wait_s:
            raise Refused(429, ErrorCode.RATE_LIMITED, "too many requests", retry_s=wait_s)

    @staticmethod
    def _check_role(scope: Scope, principal: Principal) -> None:
        """Readers write nothing; which resources an instance may write is the routes' to know."""
        if principal.role is Role.READER and scope["method"] in _WRITES:
            raise Refused(403, ErrorCode.FORBIDDEN, "a reader's token changes nothing")

    async def _read_body(self, scope: Scope, receive: Receive) -> Receive:
        """The whole body, within its size and time, as what the application receives."""
        if scope["method"] not in _WRITES:
            return receive
        body = bytearray()
        more = True
        while more:
            try:
                message = await asyncio.wait_for(receive(), self._body_timeout_s)
            except TimeoutError as exc:
                raise Refused(408, ErrorCode.INVALID, "the body came too slowly") from exc
            if message["type"] == "http.disconnect":
                raise Refused(400, ErrorCode.INVALID, "the connection was closed before the body's end")
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > BODY_BYTES_MAX:
                raise Refused(413, ErrorCode.INVALID, f"the body is larger than {BODY_BYTES_MAX} bytes")
        sent = False

        async def replay() -> MutableMapping[str, Any]:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": bytes(body), "more_body": False}
            return await receive()

        return replay

    async def _refuse(self, scope: Scope, send: Send, refused: Refused) -> None:
        self.refusals[refused.code] = self.refusals.get(refused.code, 0) + 1
        if scope["method"] in _WRITES:
            audit("refuse", by=scope.get("principal"), kind="", name=scope["path"][:300], outcome=refused.code.value)
        headers = [(b"content-type", b"application/json"), (b"x-request-id", scope["request_id"].encode())]
        if refused.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if refused.retry_s:
            headers.append((b"retry-after", str(max(1, round(refused.retry_s))).encode()))
        body = error_bytes(refused.code, str(refused), hint=refused.hint, request_id=scope["request_id"])
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": refused.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
