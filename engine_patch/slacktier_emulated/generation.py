# SPDX-License-Identifier: Apache-2.0
"""One answer from the engine's tokens to the client's bytes, streamed or whole, and what happens if the client goes."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import JSONResponse, Response

from slacktier_emulated import sse
from slacktier_emulated.detokenize import EMPTY, Detokenizer, Piece, PieceTable, make_piece
from slacktier_emulated.engine_client import EngineClient, TokenStream
from slacktier_emulated.requests import Generation, RequestError
from slacktier_emulated.scheduler import Finish
from slacktier_emulated.server_metrics import Outcome, ServerMetrics

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_REASONS: Final = {Finish.STOP: "stop", Finish.LENGTH: "length"}
_STREAM_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class ClientGoneError(Exception):
    """The client closed its connection before the answer ended."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request that the engine has taken; `arrived_ns` is when the server got it."""

    request: Generation
    request_id: int
    stream: TokenStream
    prompt_tokens: int
    arrived_ns: int


class AnswerText:
    """Turns tokens into pieces of text, one per token, and counts them."""

    def __init__(self, accepted: Accepted, table: PieceTable, eos_id: int) -> None:
        self._stream = accepted.stream
        self._eos_id = eos_id
        self._text = Detokenizer(table, accepted.request.stops)
        self.token_count = 0

    async def next(self) -> tuple[list[Piece], str | None]:
        """Pieces of the tokens that have come, at least one, and why the answer ends with them if it does.

        raises  ClientGoneError; RequestError if the engine could not go on
        """
        tokens = await self._stream.take()
        if self._stream.is_abandoned:
            raise ClientGoneError
        if not tokens:
            raise RequestError(self._stream.error, status=500, kind="server_error", code="engine_error")
        pieces: list[Piece] = []
        for token, finish in tokens:
            self.token_count += 1
            is_hidden = token == self._eos_id and finish == Finish.STOP
            pieces.append(EMPTY if is_hidden else self._text.push(token))
            if finish and not self._text.has_stopped:
                # What was held back goes out with the last token: one event per token, whatever happens.
                pieces[-1] = make_piece(pieces[-1].text + self._text.finish().text)
                return pieces, _REASONS[Finish(finish)]
            if self._text.has_stopped:
                return pieces, "stop"
        return pieces, None


class AnswerResponse(Response):
    """An ASGI response that follows the engine: one write per stream and step; it ends when the client goes."""

    def __init__(
        self, accepted: Accepted, client: EngineClient, metrics: ServerMetrics, table: PieceTable, *,
        model: str, eos_id: int,
    ) -> None:  # fmt: skip
        self.background = None
        self._accepted = accepted
        self._client = client
        self._metrics = metrics
        self._text = AnswerText(accepted, table, eos_id)
        self._model = model
        self._created = int(time.time())
        self._answer_id = f"{'chatcmpl' if accepted.request.is_chat else 'cmpl'}-{secrets.token_hex(12)}"

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        watcher = asyncio.ensure_future(_watch(receive, self._accepted.stream))
        outcome = Outcome.CANCELLED
        try:
            if self._accepted.request.stream:
                await self._stream_to(send)
            else:
                await JSONResponse(await self._whole())(scope, receive, send)
            outcome = Outcome.COMPLETED
        except ClientGoneError:
            outcome = Outcome.CANCELLED
        except RequestError as exc:
            outcome = Outcome.FAILED
            await JSONResponse(exc.body(), exc.status)(scope, receive, send)
        except _StreamBrokenError:
            outcome = Outcome.FAILED
        finally:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher
            self._client.cancel(self._accepted.request_id)
            self._count(outcome)

    @property
    def _usage(self) -> sse.Usage:
        accepted = self._accepted
        return sse.Usage(accepted.prompt_tokens, self._text.token_count, accepted.stream.cached_tokens)

    async def _stream_to(self, send: Send) -> None:
        request = self._accepted.request
        writer = sse.EventWriter(
            self._answer_id, self._model, self._created,
            is_chat=request.is_chat, include_usage=request.include_usage,
        )  # fmt: skip
        # Nothing is sent before the first token, so that a request which fails early gets a status that says so.
        pieces, reason = await self._text.next()
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        opening = writer.opening()
        while reason is None:
            body = opening + b"".join([writer.token(piece) for piece in pieces])
            await send({"type": "http.response.body", "body": body, "more_body": True})
            opening = b""
            try:
                pieces, reason = await self._text.next()
            except RequestError as exc:
                await send({"type": "http.response.body", "body": sse.error_event(exc.body()), "more_body": False})
                raise _StreamBrokenError from exc
        body = opening + b"".join([writer.token(piece) for piece in pieces[:-1]])
        body += writer.last(pieces[-1], reason) + writer.usage(self._usage) + sse.DONE
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _whole(self) -> dict[str, Any]:
        texts: list[str] = []
        reason: str | None = None
        while reason is None:
            pieces, reason = await self._text.next()
            texts += [piece.text for piece in pieces]
        return sse.whole_answer(
            self._answer_id, self._model, self._created,
            is_chat=self._accepted.request.is_chat, text="".join(texts), finish_reason=reason, usage=self._usage,
        )  # fmt: skip

    def _count(self, outcome: Outcome) -> None:
        stream = self._accepted.stream
        self._metrics.finished(
            outcome, arrived_ns=self._accepted.arrived_ns, first_ns=stream.first_ns, last_ns=stream.last_ns,
            tokens=stream.received, prompt=self._accepted.prompt_tokens, cached=stream.cached_tokens,
        )  # fmt: skip


class _StreamBrokenError(Exception):
    """The stream ended with an error event; its status had gone out before."""


async def _watch(receive: Receive, stream: TokenStream) -> None:
    """Wakes whoever waits for tokens when the client goes away."""
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.abandon()
