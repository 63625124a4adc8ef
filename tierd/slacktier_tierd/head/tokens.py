# SPDX-License-Identifier: Apache-2.0
"""Who a bearer token belongs to: a token file, or Kubernetes' TokenReview. Nothing here knows what a caller may do."""

from __future__ import annotations

import hashlib
import json
import ssl
import stat
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol

from slacktier.errors import ConfigError, SlackTierError
from slacktier_native.row_handshake import TOKEN_BYTES_MIN

TOKEN_BYTES_MAX: Final = 8192  # a service account's token is about 1 kB
TOKENS_MAX: Final = 100_000
_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_POD_NAME: Final = "authentication.kubernetes.io/pod-name"


class Role(StrEnum):
    """admin: everything; instance: its own resources; reader: whatever is no secret."""

    ADMIN = "admin"
    INSTANCE = "instance"
    READER = "reader"


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller: its role, and for an instance its name or `*` for any."""

    role: Role
    name: str

    def is_instance(self, name: str) -> bool:
        return self.role is Role.ADMIN or (self.role is Role.INSTANCE and self.name in ("*", name))


class TokenReviewUnavailableError(SlackTierError):
    """The API server did not answer: nobody can be told from anybody."""


class Tokens(Protocol):
    """Answers whose a token is; may block for as long as a call over the network takes."""

    def principal(self, token: str) -> Principal | None:
        """None for a token that is nobody's; raises TokenReviewUnavailableError."""
        ...


def _digest(token: str) -> bytes:
    # A table of digests: how long a look-up takes says nothing about how much of a token was right.
    return hashlib.sha256(token.encode()).digest()


class FileTokens:
    """Tokens from a file of lines `ROLE NAME TOKEN`, read again when the file changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._by_digest, self._stamp = self._read()

    def _read(self) -> tuple[dict[bytes, Principal], tuple[int, int]]:
        try:
            found = self._path.stat()
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(f"token file {self._path}: {exc}") from exc
        if found.st_mode & (stat.S_IWOTH | stat.S_IROTH):
            raise ConfigError(
                f"token file {self._path}: every user can read or write it", hint=f"chmod 600 {self._path}"
            )
        return parse_tokens(text, str(self._path)), (found.st_mtime_ns, found.st_size)

    def principal(self, token: str) -> Principal | None:
        return self._by_digest.get(_digest(token))

    def reload(self) -> bool:
        """Take over a changed file; a file that is wrong changes nothing. Raises ConfigError, which says why."""
        found = self._path.stat() if self._path.exists() else None
        if found is None or (found.st_mtime_ns, found.st_size) == self._stamp:
            return False
        self._stamp = (found.st_mtime_ns, found.st_size)
        self._by_digest, self._stamp = self._read()
        return True


def parse_tokens(text: str, where: str) -> dict[bytes, Principal]:
    """Digest of each token -> whose it is; raises ConfigError naming the line, never the token."""
    tokens: dict[bytes, Principal] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = line.split()
        if len(parts) != 3:
            raise ConfigError(f"{where}: line {number}: {len(parts)} words, expected ROLE NAME TOKEN")
        role, name, token = parts
        if role not in list(Role):
            raise ConfigError(f"{where}: line {number}: role {role!r}, expected one of {', '.join(Role)}")
        if len(token) < TOKEN_BYTES_MIN:
            raise ConfigError(
                f"{where}: line {number}: a token of {len(token)} characters, expected at least {TOKEN_BYTES_MIN}",
                hint="openssl rand -hex 32 makes one",
            )
        if _digest(token) in tokens:
            raise ConfigError(f"{where}: line {number}: the token of another line")
        tokens[_digest(token)] = Principal(Role(role), name)
    if not tokens:
        raise ConfigError(f"{where}: no token in it", hint="a line is ROLE NAME TOKEN")
    if len(tokens) > TOKENS_MAX:
        raise ConfigError(f"{where}: {len(tokens)} tokens, expected at most {TOKENS_MAX}")
    return tokens


Post = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class ReviewedTokens:
    """Service account tokens, checked by the cluster's API server; answers are kept for `keep_s`.

    A pod's own token makes it the instance NAMESPACE.POD; accounts named as admins or readers have those roles.

    post    sends a TokenReview and returns the answer; raises OSError
    admins, readers  accounts as NAMESPACE:NAME
    audience  what a token must have been made for
    """

    def __init__(
        self, post: Post, *, admins: Sequence[str], readers: Sequence[str] = (), audience: str = "slacktier",
        keep_s: float = 30.0, now_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._post, self._audience, self._keep_s, self._now_s = post, audience, keep_s, now_s
        self._roles = dict.fromkeys(readers, Role.READER) | dict.fromkeys(admins, Role.ADMIN)
        self._kept: dict[bytes, tuple[float, Principal | None]] = {}

    def principal(self, token: str) -> Principal | None:
        key, now = _digest(token), self._now_s()
        kept = self._kept.get(key)
        if kept is not None and now < kept[0]:
            return kept[1]
        found = self._review(token)
        if len(self._kept) >= TOKENS_MAX:
            self._kept.clear()
        self._kept[key] = (now + self._keep_s, found)
        return found

    def _review(self, token: str) -> Principal | None:
        body = {
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "spec": {"token": token, "audiences": [self._audience]},
        }  # fmt: skip
        try:
            status = self._post(body).get("status")
        except (OSError, ValueError) as exc:
            raise TokenReviewUnavailableError(f"TokenReview: the API server did not answer: {exc}") from exc
        return self._role_of(status) if isinstance(status, Mapping) else None

    def _role_of(self, status: Mapping[str, Any]) -> Principal | None:
        if status.get("authenticated") is not True or self._audience not in (status.get("audiences") or ()):
            return None
        user = status.get("user") or {}
        parts = str(user.get("username", "")).split(":")
        if len(parts) != 4 or parts[:2] != ["system", "serviceaccount"]:
            return None
        namespace, account = parts[2], parts[3]
        role = self._roles.get(f"{namespace}:{account}")
        if role is not None:
            return Principal(role, f"{namespace}:{account}")
        pods = list((user.get("extra") or {}).get(_POD_NAME) or [])
        return Principal(Role.INSTANCE, f"{namespace}.{pods[0]}") if len(pods) == 1 else None


def api_server_post(
    url: str = "", *, token_path: Path = _SERVICE_ACCOUNT / "token", ca_path: Path = _SERVICE_ACCOUNT / "ca.crt",
    timeout_s: float = 5.0,
) -> Post:  # fmt: skip
    """A Post to the API server that a pod finds in its environment, with the pod's own account."""
    if not url:
        url = "https://kubernetes.default.svc"
    if not url.startswith("https://"):
        raise ConfigError(f"API server {url}: expected https://")
    try:
        context = ssl.create_default_context(cafile=str(ca_path))
        token_path.read_text(encoding="ascii")
    except (OSError, ValueError) as exc:
        raise ConfigError(
            f"TokenReview: {exc}", hint="it works in a pod with a service account that may create TokenReviews"
        ) from exc

    def post(body: Mapping[str, Any]) -> Mapping[str, Any]:
        request = urllib.request.Request(  # noqa: S310 - https is checked above
            f"{url}/apis/authentication.k8s.io/v1/tokenreviews", data=json.dumps(body).encode(), method="POST",
            headers={
                "Content-Type": "application/json",
                # Read each time: the kubelet renews it.
                "Authorization": f"Bearer {token_path.read_text(encoding='ascii').strip()}",
            },
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=timeout_s, context=context) as answer:  # noqa: S310
            content = json.load(answer)
        if not isinstance(content, dict):
            raise ValueError(f"answer is {type(content).__name__}, expected an object")
        return content

    return post
