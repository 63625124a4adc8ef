# SPDX-License-Identifier: Apache-2.0
"""Writes to the Kubernetes API: what the operator does besides watching. Each call runs in a thread; kopf watches."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import kubernetes
from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

from slacktier.crd import RESOURCES
from slacktier.crd_model import GROUP, PLACEMENT_LABEL, VERSION, CustomResource
from slacktier.errors import SlackTierError
from slacktier_operator.names import Key

Result = TypeVar("Result")
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
LIMIT: Final[dict[str, Any]] = {"_request_timeout": 30.0}  # else a connection that says nothing holds a worker for ever
RAW: Final[dict[str, Any]] = {"_preload_content": False, **LIMIT}


class KubeError(SlackTierError):
    """A call failed; status is HTTP's, 0 where there was no answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Kube:
    """calls counts them by verb and kind, for the metrics and for what a change costs."""

    def __init__(self) -> None:
        try:
            kubernetes.config.load_incluster_config()  # type: ignore[no-untyped-call]
        except kubernetes.config.ConfigException:
            kubernetes.config.load_kube_config()  # type: ignore[no-untyped-call]
        self._custom = kubernetes.client.CustomObjectsApi()
        self._core = kubernetes.client.CoreV1Api()
        self.calls: dict[tuple[str, str], int] = {}

    async def patch_status(self, resource: type[CustomResource], key: Key, status: dict[str, Any]) -> None:
        """Replace the whole status; an object that is gone is no error."""
        body = {"status": status}
        where = (GROUP, VERSION, key.namespace, resource.plural, key.name)
        if resource.namespaced:
            call = lambda: self._custom.patch_namespaced_custom_object_status(*where, body, **LIMIT)  # noqa: E731
        else:
            call = lambda: self._custom.patch_cluster_custom_object_status(  # noqa: E731
                GROUP, VERSION, resource.plural, key.name, body, **LIMIT
            )
        await self._gone_is_fine("patch_status", resource.kind, key, call)

    async def create(self, resource: type[CustomResource], namespace: str, body: dict[str, Any]) -> None:
        """Create an object, or make the spec of one that is there this one's."""
        key = Key(namespace, body["metadata"]["name"])
        try:
            await self._run(
                "create", resource.kind, key,
                lambda: self._custom.create_namespaced_custom_object(
                    GROUP, VERSION, namespace, resource.plural, body, **LIMIT
                ),
            )  # fmt: skip
        except KubeError as exc:
            if exc.status != 409:
                raise
            await self.patch(resource, key, {"spec": body["spec"]})

    async def patch(self, resource: type[CustomResource], key: Key, body: dict[str, Any]) -> None:
        where = (GROUP, VERSION, key.namespace, resource.plural, key.name)
        await self._gone_is_fine(
            "patch", resource.kind, key, lambda: self._custom.patch_namespaced_custom_object(*where, body, **LIMIT)
        )

    async def delete(self, resource: type[CustomResource], key: Key) -> None:
        where = (GROUP, VERSION, key.namespace, resource.plural, key.name)
        await self._gone_is_fine(
            "delete", resource.kind, key, lambda: self._custom.delete_namespaced_custom_object(*where, **LIMIT)
        )

    async def list_all(self, kind: str) -> list[dict[str, Any]]:
        """All objects of a kind that the store holds, in all namespaces, as JSON: of pods, the serving ones."""
        pods: Any = self._core.list_pod_for_all_namespaces
        nodes: Any = self._core.list_node
        call: Callable[[], Any]
        if kind == "Pod":
            call = lambda: json.loads(pods(label_selector=PLACEMENT_LABEL, **RAW).data)  # noqa: E731
        elif kind == "Node":
            call = lambda: json.loads(nodes(**RAW).data)  # noqa: E731
        else:
            plural = next(each.plural for each in RESOURCES if each.kind == kind)
            call = lambda: self._custom.list_cluster_custom_object(GROUP, VERSION, plural, **LIMIT)  # noqa: E731
        found = await self._run("list", kind, Key("", ""), call)
        # A list of pods or nodes does not say in each item what it is.
        return [{"apiVersion": "v1", "kind": kind, **item} for item in found["items"]]

    async def patch_pod(self, key: Key, operations: list[dict[str, Any]]) -> None:
        """A JSON patch of a pod, whose `test` operations make it fail if the pod is not what was seen."""
        await self._gone_is_fine(
            "patch", "Pod", key,
            lambda: self._core.patch_namespaced_pod(
                key.name, key.namespace, operations, _content_type=JSON_PATCH, **LIMIT
            ),
        )  # fmt: skip

    async def event(self, body: Mapping[str, Any], kind: str, reason: str, message: str) -> None:
        """An Event on an object; kind is Normal or Warning."""
        metadata = body["metadata"]
        namespace = metadata.get("namespace") or "default"
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event = {
            "metadata": {"generateName": f"{metadata['name']}.", "namespace": namespace},
            "involvedObject": {
                "apiVersion": body["apiVersion"], "kind": body["kind"], "name": metadata["name"],
                "namespace": metadata.get("namespace", ""), "uid": metadata["uid"],
            },
            "type": kind, "reason": reason, "message": message[:1000], "source": {"component": "slacktier-operator"},
            "firstTimestamp": now, "lastTimestamp": now, "count": 1,
        }  # fmt: skip
        # A namespace that is going takes no new objects, and nothing hangs on an Event.
        with contextlib.suppress(KubeError):
            await self._run(
                "create", "Event", Key(namespace, metadata["name"]),
                lambda: self._core.create_namespaced_event(namespace, event, **LIMIT),  # type: ignore[arg-type]
            )  # fmt: skip

    async def _gone_is_fine(self, verb: str, kind: str, key: Key, call: Callable[[], Any]) -> None:
        try:
            await self._run(verb, kind, key, call)
        except KubeError as exc:
            if exc.status != 404:
                raise

    async def _run(self, verb: str, kind: str, key: Key, call: Callable[[], Result]) -> Result:
        self.calls[verb, kind] = self.calls.get((verb, kind), 0) + 1
        try:
            return await asyncio.to_thread(call)
        except ApiException as exc:
            raise KubeError(
                f"{verb} {kind} {key}: {exc.status} {exc.reason}: {exc.body}"[:1000], exc.status or 0
            ) from exc
        except (HTTPError, OSError) as exc:
            raise KubeError(f"{verb} {kind} {key}: {exc}"[:1000], 0) from exc
