# SPDX-License-Identifier: Apache-2.0
"""From nothing to a checked token, with the commands that the page gives; without KubeRay here."""

from __future__ import annotations

import json
import time

from cluster_site import Site


def json_lines(text: str) -> list[dict[str, object]]:
    """The answers of our servers in a shell's output: one JSON object a line, or several in one."""
    found, decoder = [], json.JSONDecoder()
    for line in text.splitlines():
        while line.startswith("{"):
            value, end = decoder.raw_decode(line)
            found.append(value)
            line = line[end:]
    return found


def test_the_page_s_commands_lead_to_a_checked_token(site: Site) -> None:
    assert not site.installed(), "this test is about a cluster without a release"
    started = time.monotonic()
    site.follow("Install")
    answers = json_lines(site.follow("First token"))
    print(f"from nothing to the first checked token and all that follows: {time.monotonic() - started:.0f} s")
    completion = next(answer for answer in answers if "choices" in answer)
    report = next(answer for answer in answers if "rows_checked" in answer)
    assert completion["usage"]["completion_tokens"] == 16
    assert report["rows_checked"] > 0
    assert report["mismatched_rows"] == 0
