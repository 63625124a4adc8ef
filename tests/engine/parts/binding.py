# SPDX-License-Identifier: Apache-2.0
"""A server that is told by tierd what to read from: at its start, and whenever that changes. The head is a stand-in."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import world

from slacktier.errors import ContractError
from slacktier.region import open_region
from slacktier_engine.settings import Settings, load_settings


class Head:
    """What the plugin asks of tierd's head: an instance, its access, reports."""

    def __init__(self, regions: Path) -> None:
        self.regions = regions
        self.calls: list[str] = []
        self.access = self.made(1, "nvme", 64)

    def made(self, version: int, tier: str, cache_rows: int, digest: str = "") -> dict[str, Any]:
        layers = []
        for layer_id in world.LAYERS:
            path = self.regions / f"{layer_id}.region"
            with open_region([path]) as region:
                sb = region.superblock
            replica = {
                "replica": f"r{layer_id}", "tier": tier, "table_uuid": str(sb.table_uuid),
                "digest": digest or sb.source_digest.hex(), "epoch": sb.epoch, "rows": sb.row_count,
                "paths": [str(path)],
            }  # fmt: skip
            layers.append({"layer_id": layer_id, "table": "t", "cache_rows": cache_rows, "replicas": [replica]})
        return {"instance": "small", "version": version, "bound": True, "layers": layers}

    @contextmanager
    def serving(self) -> Iterator[str]:
        head = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                head.calls.append(f"{self.command} {self.path}")
                if "version=2" in self.path:
                    time.sleep(0.2)  # nothing has changed
                body = json.dumps(head.access).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_PUT = answer  # noqa: N815 -- the names are http.server's

            def log_message(self, *_: Any) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def settings_of(folder: Path, url: str) -> Settings:
    token = folder / "token"
    token.write_text("a-token-of-one-test-run")
    layers = [
        {"layer_id": k, "table": "t", "window_ms": 1.0, "misses": [{"cache_rows": 0, "pages": 10.0}]}
        for k in world.LAYERS
    ]
    tierd = {"url": url, "token_file": str(token), "instance": "small", "needs": {"step_ms": 10.0, "layers": layers}}
    return load_settings(json.dumps({"tierd": tierd, "check": {"checkpoint": str(folder / "checkpoint"), "rate": 1.0}}))


def check_tierd_says_what_to_read_from(folder: Path) -> None:
    head = Head(folder / "regions")
    with head.serving() as url:
        tier, model = world.attached(settings_of(folder, url))
        assert head.calls[:2] == ["PUT /v1/instances/small", "GET /v1/instances/small/access"], head.calls
        ids = world.random_ids()
        first = world.run_step(tier, model, ids)
        head.access = head.made(2, "dram", 128)
        until_s = time.monotonic() + 20
        while tier.groups[0].core.stats()[14]["cache_rows"] != 128 and time.monotonic() < until_s:
            time.sleep(0.02)
        again = world.run_step(tier, model, ids)
        assert tier.groups[0].core.sources(1)[0].tier == "dram"
        assert tier.groups[0].core.stats()[14]["cache_rows"] == 128
        assert all(world.same_bits(a, b) for a, b in zip(first, again, strict=True))
        report = tier.follower.report()
        assert (report.ready, report.steps) == (True, 2), report
        assert report.layers[0].lookups == 2 * ids[:, 0].numel(), report
        assert tier.follower.report().steps == 0
        tier.close()


def check_a_region_that_tierd_did_not_stage_is_refused(folder: Path) -> None:
    head = Head(folder / "regions")
    head.access = head.made(1, "nvme", 64, digest="00" * 32)
    found = ""
    with head.serving() as url:
        try:
            world.attached(settings_of(folder, url))
        except ContractError as exc:
            found = str(exc)
    assert re.search("layer 1: nvme:.* has digest [0-9a-f]{64}, tierd says 0000", found), found
