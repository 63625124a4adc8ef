# SPDX-License-Identifier: Apache-2.0
"""What `helm test` runs: tierd must be ready (Ray's nodes answer) and tell this pod's account what it holds.

usage: helm_test.py URL TOKEN_FILE CA_FILE      exit code 1, with the reason, where either fails
"""

from __future__ import annotations

import json
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

CALL_S = 10.0


def ask(url: str, token: str, context: ssl.SSLContext | None) -> Any:
    """The answer's JSON; raises OSError, of which HTTPError is one."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})  # noqa: S310 - the chart's URL
    with urllib.request.urlopen(request, timeout=CALL_S, context=context) as answer:  # noqa: S310
        return json.load(answer)


def main(url: str, token_file: str, ca_file: str) -> int:
    context = ssl.create_default_context(cafile=ca_file) if ca_file else None
    token = Path(token_file).read_text(encoding="ascii").strip()
    try:
        ask(f"{url}/readyz", token, context)
        pools = ask(f"{url}/v1/pools", token, context)["items"]
    except urllib.error.HTTPError as exc:
        print(f"{exc.url}: HTTP {exc.code}: {exc.read(4096).decode(errors='replace')}", file=sys.stderr)
        return 1
    except OSError as exc:
        print(f"{url}: no answer: {exc}", file=sys.stderr)
        return 1
    print(f"tierd at {url} is ready, pools: {len(pools)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
