# SPDX-License-Identifier: Apache-2.0
"""`slacktier verify`: every bit of a region, its superblocks included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from slacktier_cli.progress import byte_progress
from slacktier_cli.sizes import size_text
from slacktier_tierd.verify import VerifyReport, verify_region


def _print(report: VerifyReport) -> None:
    where = ", ".join(report.paths)
    for fault in report.faults:
        print(fault)
    more = report.fault_count - len(report.faults)
    if more:
        print(f"... and {more} more")
    verdict = (
        f"{report.fault_count} fault{'s' * (report.fault_count > 1)}" if report.fault_count else "every bit is right"
    )
    pattern = ", rows are the pattern's" if report.pattern_checked and not report.fault_count else ""
    print(
        f"{where}: {verdict}{pattern}: layer {report.layer_id}, {report.state}, epoch {report.epoch}, "
        f"{report.pages_checked} of {report.page_count} pages, {size_text(report.bytes_verified)} "
        f"in {report.seconds:.1f} s"
    )


def command(
    paths: Annotated[list[Path], typer.Argument(help="The region: one path, or those of all its stripes.")],
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Accept a partial region (tests make them).")
    ] = False,
    check_pattern: Annotated[
        bool, typer.Option("--check-pattern", help="Compare each row with the pattern of make-checkpoint.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The pattern's seed; default: the one the region names.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, max=20, help="Chunks of 4 MiB in work at once.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check every bit of a region: both superblock copies, sizes, page headers, records, padding, digest.

    Exit code 0 if every bit is right, 1 if one is not (the first faults are listed), 2 if there is no region to check.

    Examples:
      slacktier verify /mnt/nvme0/layer1.region
      slacktier verify /dev/nvme1n1 /dev/nvme2n1 --json
      slacktier verify layer1.region --check-pattern
      slacktier verify sparse.region --allow-partial
    """
    with byte_progress() as progress:
        report = verify_region(
            paths, allow_partial=allow_partial, check_pattern=check_pattern, seed=seed, threads=threads,
            progress=progress,
        )  # fmt: skip
    if as_json:
        print(json.dumps(report.as_json()))
    else:
        _print(report)
    if report.fault_count:
        raise typer.Exit(1)
