# SPDX-License-Identifier: Apache-2.0
"""The head's routes: each parses, calls the service and shapes the answer."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from importlib import resources
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException as StarletteHTTPException

from slacktier import __version__
from slacktier.api import (
    KINDS,
    PAGE_LIMIT_MAX,
    WAIT_S_MAX,
    Access,
    ErrorBody,
    ErrorCode,
    Kind,
    KindModels,
    Listing,
    Name,
    Report,
    SeedAccess,
)
from slacktier.errors import ConfigError, SlackTierError
from slacktier_tierd.head.guard import error_bytes
from slacktier_tierd.head.metrics import HeadMetrics
from slacktier_tierd.head.placing import RefusedError
from slacktier_tierd.head.service import ConflictError, NotFoundError, Service, public_spec
from slacktier_tierd.head.tokens import Principal, Role
from slacktier_tierd.head.watching import wait_for_kind, watch

LOGGER = logging.getLogger("slacktier.tierd")
LIST_LIMIT: Final = 500
# Who may PUT and DELETE besides admins: an instance its own.
_INSTANCE_KINDS: Final = frozenset({Kind.INSTANCES, Kind.SEEDS})
_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"model": ErrorBody, "description": text}
    for status, text in {
        400: "not what HTTP or JSON allow", 401: "no valid token", 403: "not this caller's to do", 404: "not there",
        408: "the body came too slowly", 409: "contradicts what is there", 413: "too large",
        422: "not what the model allows", 429: "too many requests", 503: "not now",
    }.items()
}  # fmt: skip
_bearer = HTTPBearer(auto_error=False)  # the guard has checked it; this puts it into the OpenAPI document

NamePath = Annotated[Name, Path()]
After = Annotated[Name | None, Query(description="go on behind this name")]
Limit = Annotated[int, Query(ge=1, le=PAGE_LIMIT_MAX)]
Version = Annotated[int | None, Query(ge=0, le=1 << 62)]
WaitS = Annotated[float, Query(ge=0, le=WAIT_S_MAX, allow_inf_nan=False)]


def _json(content: bytes, status: int = 200) -> Response:
    return Response(content, status, media_type="application/json")


def _principal(request: Request) -> Principal:
    found: Principal = request.scope["principal"]
    return found


def _may_write(request: Request, kind: Kind, name: str) -> Principal:
    by = _principal(request)
    if by.role is Role.ADMIN or (kind in _INSTANCE_KINDS and by.is_instance(name)):
        return by
    raise HTTPException(403, f"{kind.value}/{name} is not {by.role.value} {by.name}'s to change")


class WatchCount:
    """Open watches; above the limit new ones are told to come later."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.open = 0

    def enter(self) -> None:
        if self.open >= self._limit:
            raise HTTPException(503, "too many watches are open", headers={"Retry-After": "5"})
        self.open += 1

    def leave(self) -> None:
        self.open -= 1


def make_app(service: Service, *, is_ready: Callable[[], tuple[bool, str]], metrics: HeadMetrics) -> FastAPI:
    """All routes over one service. is_ready: whether work can be placed, and if not why."""
    app = FastAPI(
        title="SlackTier tierd", version=__version__, docs_url=None, redoc_url=None,
        description="Places, stages, serves and shares lookup tables. Behaviour: docs/api.md.",
    )  # fmt: skip
    app.include_router(_health(service, is_ready, metrics))
    api = APIRouter(prefix="/v1", dependencies=[Depends(_bearer)], responses=_ERRORS)
    watches = WatchCount(service.settings.watches_max)
    metrics.watches = watches
    _add_watch(api, service, watches)
    _add_instances(api, service, watches)
    for kind, models in KINDS.items():
        _add_reads(api, service, watches, kind, models)
        if kind is not Kind.TASKS:
            _add_writes(api, service, kind, models)
    app.include_router(api)
    _add_errors(app)
    return app


def _health(service: Service, is_ready: Callable[[], tuple[bool, str]], metrics: HeadMetrics) -> APIRouter:
    router = APIRouter()

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The process answers."""
        return {"status": "ok"}

    @router.get("/readyz", responses={503: {"description": "work cannot be placed now"}})
    async def readyz() -> JSONResponse:
        """Whether nodes answer; bindings in force go on either way."""
        ready, why = is_ready()
        return JSONResponse({"ready": ready, "message": why}, 200 if ready else 503)

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def scrape() -> Response:
        """Prometheus text."""
        return Response(metrics.text(service), media_type="text/plain; version=0.0.4; charset=utf-8")

    for path, name, media in (
        ("/", "page.html", "text/html"), ("/page.js", "page.js", "text/javascript"),
        ("/page.css", "page.css", "text/css"),
    ):  # fmt: skip
        content = resources.files("slacktier_tierd").joinpath("web", name).read_bytes()
        router.add_api_route(path, _static(content, media), include_in_schema=False)
    return router


def _static(content: bytes, media: str) -> Callable[[], Response]:
    headers = {
        "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'", "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }  # fmt: skip

    def answer() -> Response:
        return Response(content, media_type=f"{media}; charset=utf-8", headers=headers)

    return answer


def _add_watch(api: APIRouter, service: Service, watches: WatchCount) -> None:
    @api.get("/watch", response_class=StreamingResponse, responses={200: {"content": {"text/event-stream": {}}}})
    async def watch_all(
        kinds: Annotated[str, Query(max_length=200, pattern=r"^[a-z]+(,[a-z]+)*$")] = ",".join(Kind),
        version: Version = None,
    ) -> StreamingResponse:
        """Changes as server-sent events."""
        unknown = [kind for kind in kinds.split(",") if kind not in list(Kind)]
        if unknown:
            raise HTTPException(422, f"kinds: {unknown[0]!r}: expected some of {', '.join(Kind)}")
        watches.enter()
        return StreamingResponse(
            _counted(watch(service.store, frozenset(map(Kind, kinds.split(","))), version), watches),
            media_type="text/event-stream", headers={"Cache-Control": "no-cache"},
        )  # fmt: skip


async def _counted(events: AsyncIterator[bytes], watches: WatchCount) -> AsyncIterator[bytes]:
    try:
        async for event in events:
            yield event
    finally:
        watches.leave()


def _add_instances(api: APIRouter, service: Service, watches: WatchCount) -> None:
    @api.get("/instances/{name}/access", response_model=Access)
    async def access(request: Request, name: NamePath, version: Version = None, wait_s: WaitS = 0.0) -> Response:
        """All that an instance needs to read its rows; answered to that instance alone."""
        if not _principal(request).is_instance(name):
            raise HTTPException(403, f"the access of {name} is told to {name} alone")
        if version is None or not wait_s:
            return _json(service.access(name).model_dump_json().encode())
        watches.enter()
        try:
            found = await service.wait_access(name, version, wait_s)
        finally:
            watches.leave()
        return _json(found.model_dump_json().encode())

    @api.put("/instances/{name}/report", response_model=Report)
    async def report(request: Request, name: NamePath, body: Report) -> Response:
        """What an instance measured in an interval."""
        _may_write(request, Kind.INSTANCES, name)
        service.report(name, body)
        return _json(body.model_dump_json().encode())

    @api.get("/instances/{name}/seed", response_model=SeedAccess)
    async def seed(request: Request, name: NamePath) -> Response:
        """The seed server of a prefill instance; told to bound instances alone."""
        by = _principal(request)
        if by.role is Role.READER:
            raise HTTPException(403, "seed servers are told to bound instances alone")
        return _json(service.seed_access(name, by).model_dump_json().encode())


def _add_reads(api: APIRouter, service: Service, watches: WatchCount, kind: Kind, models: KindModels) -> None:
    listing: Any = Listing[models.resource]  # type: ignore[name-defined]

    async def list_all(
        after: After = None, limit: Limit = LIST_LIMIT, version: Version = None, wait_s: WaitS = 0.0
    ) -> Response:
        """A page of resources in order of names; with `version` and `wait_s` as soon as one is newer."""
        store = service.store
        if version is not None and wait_s:
            watches.enter()
            try:
                await wait_for_kind(store, kind, version, wait_s)
            finally:
                watches.leave()
        entries, following = store.page(kind, after=after or "", limit=limit)
        items = b",".join(entry.encoded(public_spec(kind)) for entry in entries)
        tail = f'], "version": {store.version}, "next": ' + (f'"{following}"}}' if following else "null}")
        return _json(b'{"items": [' + items + tail.encode())

    async def get_one(name: NamePath) -> Response:
        """One resource."""
        entry = service.store.get(kind, name)
        if entry is None:
            raise NotFoundError(f"{kind.value}/{name}: not there")
        return _json(entry.encoded(public_spec(kind)))

    api.add_api_route(f"/{kind}", list_all, methods=["GET"], response_model=listing, name=f"list_{kind}")
    api.add_api_route(f"/{kind}/{{name}}", get_one, methods=["GET"], response_model=models.resource, name=f"get_{kind}")


def _add_writes(api: APIRouter, service: Service, kind: Kind, models: KindModels) -> None:
    async def put_one(request: Request, name: NamePath, body: Any) -> Response:
        """Make a spec so; 201 if it is new, else 200."""
        by = _may_write(request, kind, name)
        entry, is_new = service.put(kind, name, body, by)
        return _json(entry.encoded(public_spec(kind)), 201 if is_new else 200)

    async def delete_one(request: Request, name: NamePath) -> Response:
        """Take a resource away; 200 also where it is not there."""
        by = _may_write(request, kind, name)
        existed = service.delete(kind, name, by)
        return JSONResponse({"deleted": existed})

    put_one.__annotations__["body"] = models.spec
    api.add_api_route(
        f"/{kind}/{{name}}", put_one, methods=["PUT"], response_model=models.resource, name=f"put_{kind}",
        responses={201: {"model": models.resource, "description": "it is new"}},
    )  # fmt: skip
    api.add_api_route(
        f"/{kind}/{{name}}", delete_one, methods=["DELETE"], response_model=dict[str, bool], name=f"delete_{kind}"
    )


def _add_errors(app: FastAPI) -> None:
    """Every error has the one body."""
    codes = {
        400: ErrorCode.INVALID, 403: ErrorCode.FORBIDDEN, 404: ErrorCode.NOT_FOUND, 405: ErrorCode.METHOD_NOT_ALLOWED,
        422: ErrorCode.INVALID, 503: ErrorCode.UNAVAILABLE,
    }  # fmt: skip

    def answer(request: Request, status: int, code: ErrorCode, message: str, **more: Any) -> Response:
        headers = more.pop("headers", None) or {}
        body = error_bytes(code, message, request_id=request.scope.get("request_id", ""), **more)
        return Response(body, status, media_type="application/json", headers=dict(headers))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, exc: RequestValidationError) -> Response:
        first = exc.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        message = str(first["msg"]).removeprefix("Value error, ")
        status = 400 if first["type"] == "json_invalid" else 422
        return answer(
            request, status, ErrorCode.INVALID, f"{where}: {message}" if where else message, field=where[:1024]
        )

    @app.exception_handler(StarletteHTTPException)
    async def http(request: Request, exc: StarletteHTTPException) -> Response:
        code = codes.get(exc.status_code, ErrorCode.INVALID)
        return answer(request, exc.status_code, code, str(exc.detail), headers=exc.headers)

    @app.exception_handler(RefusedError)
    async def refused(request: Request, exc: RefusedError) -> Response:
        code = ErrorCode.SHARING_REFUSED if exc.is_sharing else ErrorCode.DOES_NOT_FIT
        return answer(request, 409, code, str(exc), hint=exc.hint, details=exc.details)

    @app.exception_handler(SlackTierError)
    async def ours(request: Request, exc: SlackTierError) -> Response:
        if isinstance(exc, NotFoundError):
            return answer(request, 404, ErrorCode.NOT_FOUND, str(exc), hint=exc.hint)
        if isinstance(exc, ConflictError):
            return answer(request, 409, ErrorCode.CONFLICT, str(exc), hint=exc.hint)
        if isinstance(exc, ConfigError):
            return answer(request, 422, ErrorCode.INVALID, str(exc), hint=exc.hint)
        return answer(request, 503, ErrorCode.UNAVAILABLE, str(exc), hint=exc.hint)

    @app.exception_handler(Exception)
    async def fault(request: Request, exc: Exception) -> Response:
        LOGGER.error("request %s failed", request.scope.get("request_id"), exc_info=exc)
        return answer(request, 500, ErrorCode.INTERNAL, "a fault of tierd's own; its log has it under the request id")
