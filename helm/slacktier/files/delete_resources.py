# SPDX-License-Identifier: Apache-2.0
"""What the pre-delete hook runs: deletes all custom resources, then waits until tierd has taken their regions away.

usage: delete_resources.py URL TOKEN_FILE CA_FILE      exit code 1, saying what is left, after WAIT_S
"""

from __future__ import annotations

import json
import ssl
import sys
import time
import urllib.request
from pathlib import Path

import kubernetes

GROUP, VERSION = "slacktier.dev", "v1alpha1"
# Placements first: without one, nobody is bound to a copy any more, and copies may go.
KINDS = ("tableplacements", "lookuptables", "tierpools")
WAIT_S = 100.0


def delete_all() -> None:
    """Every object of our kinds; the operator writes no finalizers, so they are gone at once."""
    api = kubernetes.client.CustomObjectsApi()
    for plural in KINDS:
        for each in api.list_cluster_custom_object(GROUP, VERSION, plural)["items"]:
            name, namespace = each["metadata"]["name"], each["metadata"].get("namespace")
            print(f"deleting {plural} {namespace or ''}/{name}")
            if namespace:
                api.delete_namespaced_custom_object(GROUP, VERSION, namespace, plural, name)
            else:
                api.delete_cluster_custom_object(GROUP, VERSION, plural, name)


def left_at_tierd(url: str, token_file: str, context: ssl.SSLContext | None) -> list[str]:
    """Names of copies that tierd still has."""
    token = Path(token_file).read_text(encoding="ascii").strip()
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{url}/v1/replicas", headers=headers)  # noqa: S310 - the chart's URL
    with urllib.request.urlopen(request, timeout=10, context=context) as answer:  # noqa: S310
        return [item["name"] for item in json.load(answer)["items"]]


def main(url: str, token_file: str, ca_file: str) -> int:
    kubernetes.config.load_incluster_config()
    context = ssl.create_default_context(cafile=ca_file) if ca_file else None
    delete_all()
    end, left = time.monotonic() + WAIT_S, ["?"]
    while left and time.monotonic() < end:
        time.sleep(1)
        try:
            left = left_at_tierd(url, token_file, context)
        except OSError as exc:
            print(f"{url}: {exc}", file=sys.stderr)
    if left:
        print(f"after {WAIT_S:g} s tierd still has copies: {', '.join(left)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
