# SPDX-License-Identifier: Apache-2.0
"""`slacktier bench split`: the online cache split against fixed splits on recorded sessions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slacktier.delay import SHIPPED
from slacktier.errors import ConfigError, SlackTierError
from slacktier.window_model import ReadModel
from slacktier_cli.planning.load import load_read_model
from slacktier_cli.progress import Bars
from slacktier_cli.results import print_results
from slacktier_cli.traces import Trace

if TYPE_CHECKING:
    from slacktier_cli.split_study.arms import Rule

_RANKS = 4


def split(
    trace: Annotated[Path, typer.Argument(help="Sessions of the first half (.npz).")],
    then: Annotated[Path, typer.Argument(help="Sessions of the second half (.npz).")],
    model: Annotated[str, typer.Option(help="Shipped model, or a config.json, whose rows are looked up.")] = "v41",
    read: Annotated[
        str,
        typer.Option(help=f"Device under all layers: {', '.join(SHIPPED)}; or a file of `measure reads`."),
    ] = "paper-nvme-shared",
    window: Annotated[
        list[float] | None, typer.Option(min=0, help="Window of each layer in ms, in order of use; repeat it.")
    ] = None,
    share: Annotated[
        list[float] | None, typer.Option(min=0, max=1, help="Layer 1's share of the rows to start with; repeat it.")
    ] = None,
    sessions: Annotated[int, typer.Option(min=1, help="Sessions at once.")] = 128,
    steps: Annotated[int, typer.Option(min=100, help="Decode steps per half.")] = 8_000,
    cache_rows: Annotated[int, typer.Option(min=64, help="Cached rows of one rank, all layers together.")] = 250_000,
    seed: Annotated[int, typer.Option(min=0, help="Order of the sessions.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Serve one mix of sessions and then another, with the cache split left alone and with the controller.

    One of four ranks; its directory counts the pages, and the window rule turns them into stalls. Each half is judged
    by its later part. Exit code 1 if the controller was worse than the split it started with by more than noise.

    Examples:
      slacktier bench split agent.npz chat.npz
      slacktier bench split agent.npz chat.npz --read nvme0.yaml --share 0 --share 0.5
      slacktier bench split chat.npz agent.npz --json | jq '.arms[].halves'
    """
    from slacktier_cli.split_study import study
    from slacktier_cli.split_study.steps import half_of
    from slacktier_rowids.models import load_config, load_hasher

    hasher, rule = load_hasher(load_config(model)), _rule(read, tuple(window or (0.27, 9.35)))
    if len(rule.windows_ms) != len(hasher.layout.layer_ids):
        raise ConfigError(f"{len(rule.windows_ms)} windows for layers {list(hasher.layout.layer_ids)}: one each")
    shares, reporter, halves = share or [0.0, 0.5, 1.0], Bars(), []
    for path in (trace, then):
        loaded = Trace.load(path)
        with reporter.work(f"{path.stem}: hash", len(loaded.tokens)) as advance:
            halves.append(
                half_of(path.stem, loaded, hasher, sessions=sessions, steps=steps, seed=seed, advance=advance)
            )
    with reporter.work("steps", 2 * len(shares) * sum(half.step_count for half in halves)) as advance:
        pairs = study.run(hasher, halves, rule, cache_rows=cache_rows, shares=shares, advance=advance)
    arms = study.as_json(pairs, halves)
    rows = [
        (arm["start_share"], half["mix"], half["fixed_ms"], half["online_ms"], half["noise_ms"], _split(half["rows"]))
        for arm in arms
        for half in arm["halves"]
    ]
    print_results(
        "split", {"read": read, "sessions": sessions, "cache_rows": cache_rows, "arms": arms}, directory=trace.parent,
        as_json=as_json, rows=rows,
        columns=("start share", "mix", "fixed, stall ms", "online", "noise", "rows at the end"),
    )  # fmt: skip
    if any(half["worse"] for arm in arms for half in arm["halves"]):
        raise SlackTierError("the controller was worse than a split that it started with by more than noise")


def _split(rows: dict[str, int]) -> str:
    return ", ".join(f"{layer}: {count:,}" for layer, count in rows.items())


def _rule(read: str, windows: tuple[float, ...]) -> Rule:
    from slacktier_cli.split_study.arms import Rule

    if read in SHIPPED:
        # The paper's fit counts one rank's pages while four ranks share the disk.
        return Rule(windows, ReadModel.from_delay(SHIPPED[read], ranks_per_unit=_RANKS), _RANKS)
    return Rule(windows, load_read_model(Path(read)).read.read_model(), _RANKS)
