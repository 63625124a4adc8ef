# SPDX-License-Identifier: Apache-2.0
"""Ray's driver, a process of its own: Ray ends its driver when its head dies, and the API must not end with it.

Reads one JSON request per line from the socket on standard input, writes one or more JSON answers per request. It ends
when the head's end of the socket closes, and then a Ray that it started ends with it.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from slacktier_tierd.deployment import ray_tasks
from slacktier_tierd.deployment.ray_tasks import NAMESPACE, STAGINGS_PER_NODE, described, stage

CALL_S: Final = 30.0
_OBJECT_STORE_BYTES: Final = 80 << 20  # Ray's least; what passes through it is JSON
_RESOURCES: Final = ("nvme", "memory_node", "rdma")
_THREADS: Final = 32
_node_actor: Any = ray_tasks.NodeActor  # Ray's decorator has made another thing of the class


def connect(address: str, resources: Mapping[str, float]) -> None:
    """Join the Ray at an address, or start a small one of our own; it ends with this process."""
    if address:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.WARNING)
        return
    ray.init(
        address="local", num_cpus=1, resources=dict(resources), object_store_memory=_OBJECT_STORE_BYTES,
        include_dashboard=False, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.WARNING,
        _node_ip_address="127.0.0.1",
    )  # fmt: skip


class Driver:
    """Answers requests. Each is a thread's work, so a node that does not answer holds up nobody else."""

    def __init__(self, sock: socket.socket, run_dir: str) -> None:
        self._sock, self._run_dir = sock, run_dir
        self._writing = threading.Lock()
        self._own_node = ray.get_runtime_context().get_node_id()
        self._actors: dict[str, Any] = {}
        self._actors_lock = threading.Lock()

    def serve(self) -> None:
        """Until the other end closes."""
        self._write({"ready": True, "pid": os.getpid(), "ray_head_pid": _gcs_pid()})
        with self._sock.makefile("r", encoding="utf-8") as lines, ThreadPoolExecutor(_THREADS) as threads:
            for line in lines:
                threads.submit(self._answer, json.loads(line))
            os._exit(0)  # calls in flight would hold the pool open; Ray's own processes end with this one

    def _write(self, content: dict[str, Any]) -> None:
        with self._writing:
            self._sock.sendall(json.dumps(content).encode() + b"\n")

    def _answer(self, request: dict[str, Any]) -> None:
        reply: dict[str, Any] = {"id": request["id"]}
        try:
            if request["method"] == "nodes":
                reply["result"] = self._nodes()
            elif request["method"] == "stage":
                self._stage(request)
                reply["end"] = True
            else:
                reply |= self._call(request["node"], request["method"], request["params"])
        except BaseException as exc:  # whatever Ray raises: the head is told and decides
            reply["error"] = described(exc)
        self._write(reply)

    def _nodes(self) -> list[dict[str, Any]]:
        found = []
        for node in ray.nodes():
            is_own = node["NodeID"] == self._own_node
            resources = {name: node["Resources"].get(name, 0.0) for name in _RESOURCES}
            if is_own or any(resources.values()) or not node["Alive"]:
                found.append({
                    "name": "" if is_own else _name(node), "is_alive": bool(node["Alive"]), "resources": resources,
                    "address": node["NodeManagerAddress"],
                })  # fmt: skip
        return found

    def _node_id(self, name: str) -> str:
        if not name:
            return str(self._own_node)
        for node in ray.nodes():
            if node["Alive"] and name in (_name(node), node["NodeManagerHostname"], node["NodeManagerAddress"]):
                return str(node["NodeID"])
        raise LookupError(f"node {name!r} is not in the cluster, or not alive")

    def _actor(self, name: str) -> Any:
        """The node's actor, made where there is none yet."""
        node_id = self._node_id(name)
        with self._actors_lock:
            actor = self._actors.get(node_id)
            if actor is None:
                strategy = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
                actor = self._actors[node_id] = _node_actor.options(
                    name=f"node-{node_id}", get_if_exists=True, lifetime="detached", scheduling_strategy=strategy,
                ).remote(self._run_dir)  # fmt: skip
        return actor

    def _call(self, node: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
        actor = self._actor(node)
        answer: dict[str, Any] = ray.get(actor.call.remote(method, params), timeout=CALL_S)
        return answer

    def _stage(self, request: dict[str, Any]) -> None:
        """News as they come; the last answer is the request's end."""
        job = request["params"]["job"]
        strategy = NodeAffinitySchedulingStrategy(node_id=self._node_id(request["node"]), soft=False)
        devices = min(STAGINGS_PER_NODE, len(job["targets"]))
        news = stage.options(scheduling_strategy=strategy, resources={"nvme": devices}).remote(job)
        for reference in news:
            self._write({"id": request["id"], **ray.get(reference)})


def _name(node: Mapping[str, Any]) -> str:
    """A node's name: as given to `ray start --node-name`, else its host's."""
    name, address = str(node.get("NodeName") or ""), str(node["NodeManagerAddress"])
    return name if name and name != address else str(node["NodeManagerHostname"])


def _gcs_pid() -> int:
    """The pid of the Ray head's state service if it runs on this machine under this process; 0 otherwise."""
    from ray._private import worker

    node = getattr(worker, "_global_node", None)
    processes = getattr(node, "all_processes", {}) if node is not None else {}
    found = processes.get("gcs_server") or []
    return int(found[0].process.pid) if found else 0


def main() -> None:
    """`python -m slacktier_tierd.deployment.ray_driver ADDRESS RUN_DIR RESOURCES`, a socket on standard input."""
    address, run_dir, resources = sys.argv[1:4]
    sock = socket.socket(fileno=os.dup(0))
    connect(address, json.loads(resources))
    Driver(sock, run_dir).serve()


if __name__ == "__main__":
    main()
