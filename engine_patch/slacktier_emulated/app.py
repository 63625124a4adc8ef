# SPDX-License-Identifier: Apache-2.0
"""Routes of the emulated engine's server: parse, ask the engine, shape the reply."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, PlainTextResponse, Response

from slacktier.errors import ConfigError, SlackTierError
from slacktier_emulated.detokenize import PieceTable
from slacktier_emulated.engine_client import (
    CALL_TIMEOUT_S,
    CONTROL_TIMEOUT_S,
    EngineBusyError,
    EngineClient,
    EngineGoneError,
)
from slacktier_emulated.generation import Accepted, AnswerResponse
from slacktier_emulated.requests import Generation, RequestError, parse_body, parse_chat, parse_completion
from slacktier_emulated.server_metrics import Outcome, ServerMetrics, exposition
from slacktier_emulated.settings import EMULATED_SUFFIX, ServerSettings
from slacktier_emulated.text import Codec

# Shorter prompts are tokenized where they are; longer ones in a thread, so that other streams go on meanwhile.
_INLINE_CHARACTERS: Final = 2_000
_RETRY_AFTER_S: Final = "1"
_SCRAPE_S: Final = 5.0


class Server:
    """What the routes share."""

    def __init__(self, settings: ServerSettings, codec: Codec, *, eos_id: int, running_max: int) -> None:
        self.settings = settings
        self.codec = codec
        self.table = PieceTable(codec)
        self.metrics = ServerMetrics()
        self.client: EngineClient | None = None
        self.is_draining = False
        self.created = int(time.time())
        self._eos_id = eos_id
        self._in_flight_max = running_max + settings.waiting_max

    async def answer(self, request: Request, parse: Callable[[dict[str, Any]], Generation]) -> Response:
        """The whole way of a generation request up to the engine."""
        arrived_ns = time.monotonic_ns()
        try:
            raw = await read_body(request, self.settings.body_bytes_max, self.settings.body_timeout_s)
            generation = parse(parse_body(raw))
            self._check_model(generation.model)
            prompt = await self._encode(generation)
            max_tokens = self._max_tokens(generation, len(prompt))
            self._check_tokens(prompt, "prompt")
            self._check_tokens(generation.answer, "slacktier.output_token_ids")
        except RequestError as exc:
            self.metrics.outcomes[Outcome.REFUSED] += 1
            return error_response(exc)
        try:
            client = self._serving_client()
            request_id, stream = client.submit(
                prompt, generation.answer, max_tokens=max_tokens, ignore_eos=generation.ignore_eos, seed=generation.seed
            )
        except (RequestError, EngineGoneError) as exc:
            self.metrics.outcomes[Outcome.OVERLOADED] += 1
            return error_response(exc if isinstance(exc, RequestError) else unavailable(str(exc)))
        accepted = Accepted(generation, request_id, stream, len(prompt), arrived_ns)
        return AnswerResponse(
            accepted, client, self.metrics, self.table, model=self.settings.model_name, eos_id=self._eos_id
        )

    def _check_model(self, model: str | None) -> None:
        served = self.settings.model_name
        if model is not None and model not in (served, served.removesuffix(EMULATED_SUFFIX)):
            raise RequestError(
                f"model {model!r} is not served here; {served} is", status=404, param="model", code="model_not_found"
            )

    async def _encode(self, generation: Generation) -> list[int]:
        prompt = generation.prompt
        if isinstance(prompt, tuple):
            size = sum(len(turn.text) for turn in prompt)
            return await _maybe_in_thread(size, lambda: self.codec.encode_chat(prompt))
        if isinstance(prompt, str):
            ids = await _maybe_in_thread(len(prompt), lambda: self.codec.encode(prompt))
            return ids or [self.codec.bos_id]
        return prompt

    def _check_tokens(self, tokens: list[int], param: str) -> None:
        if tokens and max(tokens) >= self.codec.vocab_size:
            raise RequestError(
                f"{param}: id {max(tokens)} is outside the vocabulary 0 to {self.codec.vocab_size - 1}", param=param
            )

    def _max_tokens(self, generation: Generation, prompt_tokens: int) -> int:
        """Tokens that the answer may have; raises RequestError if prompt and answer do not fit the context."""
        length = self.settings.context_length
        wanted = generation.max_tokens or 1
        if prompt_tokens + wanted > length:
            raise RequestError(
                f"the context is {length} tokens long; the prompt has {prompt_tokens} and the answer may have {wanted}",
                param="prompt" if not generation.is_chat else "messages",
                code="context_length_exceeded",
            )
        return generation.max_tokens or length - prompt_tokens

    def _serving_client(self) -> EngineClient:
        """The engine, if it takes one more request; raises RequestError with status 503 otherwise."""
        client = self.client
        if client is None or not client.started.done():
            raise unavailable("the engine is starting; see /readyz")
        if self.is_draining:
            raise unavailable("the server is shutting down")
        if client.in_flight >= self._in_flight_max:
            raise unavailable(
                f"{client.in_flight} requests are running or waiting, the queue is full", code="queue_full"
            )
        return client

    def engine(self) -> EngineClient:
        """The engine for status and control calls, ready or not."""
        if self.client is None or not self.client.started.done():
            raise unavailable("the engine is starting; see /readyz")
        return self.client


def not_ready_reason(client: EngineClient | None) -> str:
    if client is None:
        return "the engine is starting"
    if client.is_ready and client.is_silent:
        return f"the engine has not been heard of for {client.silent_s:.0f} s"
    return client.error


async def _maybe_in_thread(size: int, encode: Callable[[], list[int]]) -> list[int]:
    return encode() if size <= _INLINE_CHARACTERS else await asyncio.to_thread(encode)


def unavailable(message: str, *, code: str = "unavailable") -> RequestError:
    return RequestError(message, status=503, kind="server_error", code=code, headers={"Retry-After": _RETRY_AFTER_S})


def error_response(exc: RequestError) -> JSONResponse:
    return JSONResponse(exc.body(), exc.status, headers=exc.headers)


async def read_body(request: Request, bytes_max: int, timeout_s: float) -> bytes:
    """The request's body; raises RequestError with status 413 above bytes_max, 408 if it comes too slowly."""
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > bytes_max:
        raise RequestError(f"the body has {length} bytes, at most {bytes_max} are taken", status=413)
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > bytes_max:
                    raise RequestError(f"the body has more than {bytes_max} bytes", status=413)
    except ClientDisconnect as exc:
        raise RequestError("the client went away before its body was complete") from exc
    except TimeoutError as exc:
        raise RequestError(f"the body did not come within {timeout_s:g} s", status=408) from exc
    return bytes(body)


def make_app(server: Server) -> FastAPI:
    """The ASGI application; `server.client` may still be None when it starts to serve."""
    app = FastAPI(title="SlackTier emulated engine", docs_url=None, redoc_url=None, openapi_url=None)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await server.answer(request, parse_completion)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await server.answer(request, parse_chat)

    @app.get("/v1/models")
    async def models() -> Response:
        entry = {
            "id": server.settings.model_name, "object": "model", "created": server.created,
            "owned_by": "slacktier-emulated", "max_model_len": server.settings.context_length, "engine": "emulated",
        }  # fmt: skip
        return JSONResponse({"object": "list", "data": [entry]})

    @app.get("/health")
    async def health() -> Response:
        """Alive: the process answers and its engine has not ended."""
        client = server.client
        is_gone = client is not None and client.is_gone
        return JSONResponse(
            {"status": "engine ended" if is_gone else "ok", "engine": "emulated"}, 503 if is_gone else 200
        )

    @app.get("/readyz")
    async def readyz() -> Response:
        """Ready: the last lookup through the real path worked."""
        client = server.client
        ready = client is not None and client.is_ready and not server.is_draining and not client.is_silent
        if client is not None and client.is_ready:
            client.ping()  # its answer, or that there is none, is for the next probe
        error = "" if ready else not_ready_reason(client)
        return JSONResponse({"ready": ready, "engine": "emulated", "error": error}, 200 if ready else 503)

    @app.get("/metrics")
    async def metrics_page() -> Response:
        client, counted = server.client, None
        if client is not None and client.started.done() and not client.is_gone:
            with contextlib.suppress(EngineGoneError, EngineBusyError):  # the page then says that it is not ready
                counted = await client.call("metrics", timeout_s=_SCRAPE_S)
        waiting = 0 if client is None else client.in_flight
        page = exposition(server.metrics, counted, model=server.settings.model_name, waiting=waiting)
        return PlainTextResponse(page.decode(), media_type="text/plain; version=0.0.4")

    _add_control_routes(app, server)
    _add_error_shapes(app)
    return app


def _add_control_routes(app: FastAPI, server: Server) -> None:
    async def call(method: str, params: dict[str, Any] | None = None, *, timeout_s: float = CALL_TIMEOUT_S) -> Response:
        try:
            return JSONResponse(await server.engine().call(method, params, timeout_s=timeout_s))
        except RequestError as exc:
            return error_response(exc)
        except (EngineGoneError, EngineBusyError) as exc:
            return error_response(unavailable(str(exc)))
        except SlackTierError as exc:
            text = f"{exc}; hint: {exc.hint}" if exc.hint else str(exc)
            is_bad_input = isinstance(exc, ConfigError)
            kind = "invalid_request_error" if is_bad_input else "server_error"
            return error_response(RequestError(text, status=400 if is_bad_input else 500, kind=kind))

    @app.get("/slacktier/status")
    async def status() -> Response:
        return await call("status")

    @app.get("/slacktier/report")
    async def report(request: Request, reset: bool = False) -> Response:
        if reset and (refusal := control_refusal(server.settings, request)):
            return error_response(refusal)
        return await call("report", {"reset": reset})

    @app.post("/slacktier/control")
    async def control(request: Request) -> Response:
        if refusal := control_refusal(server.settings, request):
            return error_response(refusal)
        try:
            raw = await read_body(request, server.settings.body_bytes_max, server.settings.body_timeout_s)
            return await call("control", parse_body(raw), timeout_s=CONTROL_TIMEOUT_S)
        except RequestError as exc:
            return error_response(exc)


def control_refusal(settings: ServerSettings, request: Request) -> RequestError | None:
    """Why this request may not change the server, or None if it may."""
    if settings.token is not None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(token.encode(), settings.token.encode()):
            return None
        return RequestError("control calls need the bearer token", status=401, headers={"WWW-Authenticate": "Bearer"})
    if not is_loopback(settings.host):
        return RequestError(
            f"control calls are off: the server listens on {settings.host} without --token-file", status=403
        )
    # Without a token, a web page that the user happens to visit must not reach this port through the browser.
    origin = urlsplit(request.headers.get("origin", "")).netloc
    host = request.headers.get("host", "")
    if (origin and origin != host) or not is_loopback(urlsplit(f"//{host}").hostname or ""):
        return RequestError("control calls from a web page are refused; --token-file allows them", status=403)
    return None


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _add_error_shapes(app: FastAPI) -> None:
    """Errors that FastAPI itself raises, in OpenAI's shape."""

    @app.exception_handler(RequestValidationError)
    async def parameter_error(request: Request, exc: RequestValidationError) -> Response:
        first = exc.errors()[0]
        name = str(first["loc"][-1])
        return error_response(RequestError(f"{name}: {first['msg']}", param=name))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, exc: HTTPException) -> Response:
        return error_response(
            RequestError(f"{request.method} {request.url.path}: {exc.detail}", status=exc.status_code)
        )
