# SPDX-License-Identifier: Apache-2.0
"""Lists, watches and errors of the `/v1` API.

A list carries the version that it was taken at. A watch from that version on, as server-sent events or as a list call
that waits, yields every later change once and in order.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Generic, TypeVar

from pydantic import BaseModel, Field

from slacktier.api_model import Count, Kind, Name, Part

PAGE_LIMIT_MAX: Final = 5000
WAIT_S_MAX: Final = 30.0
BODY_BYTES_MAX: Final = 1 << 20

Item = TypeVar("Item", bound=BaseModel)


class Listing(Part, Generic[Item]):
    """One page of resources in order of their names; `next` is the name to go on after, None at the end."""

    items: tuple[Item, ...]
    version: Count
    next: Name | None = None


class ChangeType(StrEnum):
    """`sync` opens a watch whose version is too old to go on from: forget what you knew, puts of all follow."""

    PUT = "put"
    DELETE = "delete"
    SYNC = "sync"


class Change(Part):
    """One event of a watch.

    item       the resource as a GET of it would answer, None for delete and sync
    resources  of a sync: how many puts follow until all is told; whoever loses the watch before that starts anew
    """

    type: ChangeType
    kind: Kind | None = None
    name: Name | None = None
    version: Count
    item: dict[str, Any] | None = None
    resources: Count = 0


class ErrorCode(StrEnum):
    """What went wrong, for programs; the HTTP status says it more coarsely."""

    INVALID = "invalid"  # 400, 413, 422
    UNAUTHORIZED = "unauthorized"  # 401
    FORBIDDEN = "forbidden"  # 403
    NOT_FOUND = "not_found"  # 404
    METHOD_NOT_ALLOWED = "method_not_allowed"  # 405
    CONFLICT = "conflict"  # 409: the spec contradicts what is there
    SHARING_REFUSED = "sharing_refused"  # 409: another instance would be pushed past its SLO
    DOES_NOT_FIT = "does_not_fit"  # 409: no placement is within the SLO or the capacity
    RATE_LIMITED = "rate_limited"  # 429, with Retry-After
    UNAVAILABLE = "unavailable"  # 503: starting, or a watch too many
    INTERNAL = "internal"  # 500: a fault of ours; the log has it under request_id


class ApiError(Part):
    """details: the numbers, as `details` of the sentence; field: the path of what is wrong in a body."""

    code: ErrorCode
    message: Annotated[str, Field(max_length=8192)]
    hint: str = ""
    field: str = ""
    details: dict[str, Any] = Field(default={})
    request_id: str = ""


class ErrorBody(Part):
    """The body of every answer that is not 2xx."""

    error: ApiError
