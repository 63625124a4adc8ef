# SPDX-License-Identifier: Apache-2.0
"""Entry point of `slacktier`: finds a subcommand by name, imports only that one, maps errors to exit codes.

Exit codes: 0 done; 1 it ran and found a fault or failed; 2 bad input, nothing was changed.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final

import typer
from typer.core import TyperGroup

from slacktier import __version__
from slacktier.errors import ConfigError, SlackTierError

# name -> (module, one line for `slacktier --help`); a module exports `command` (a function) or `app` (a Typer).
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "demo": ("slacktier_cli.commands.demo", "Run the main job on this machine: stage, serve, replay, decide."),
    "doctor": ("slacktier_cli.commands.doctor", "Say what this machine has, what is missing and how to get it."),
    "hash": ("slacktier_cli.commands.hash", "Print the row ids of tokens or text."),
    "make-checkpoint": ("slacktier_cli.commands.make_checkpoint", "Write a checkpoint whose every row can be checked."),
    "stage": ("slacktier_cli.commands.stage", "Stage a checkpoint's table to a file or block device."),
    "verify": ("slacktier_cli.commands.verify", "Check every bit of a region."),
    "serve": ("slacktier_cli.commands.serve", "Serve an OpenAI-compatible endpoint (emulated engine)."),
    "probe": ("slacktier_cli.commands.probe", "Say whether the engine here serves from its tier."),
    "tierd": ("slacktier_cli.commands.tierd", "Run the tier service: stage, serve, share and heal tables."),
    "serve-rows": ("slacktier_cli.commands.serve_rows", "Serve regions' rows to other nodes from memory, over TCP."),
    "status": ("slacktier_cli.commands.status", "Show tierd's tables, replicas, places, bindings and work."),
    "plan": ("slacktier_cli.commands.plan", "Place tables by the window rule."),
    "characterize": ("slacktier_cli.commands.characterize", "Measure miss curves from a trace."),
    "measure": ("slacktier_cli.commands.measure", "Fit a read model to a device under load."),
    "loadtest": ("slacktier_loadtest.command", "Replay sessions against servers: what a placement costs a client."),
    "bench": ("slacktier_cli.commands.bench", "Measure reads, the directory, hashing and staging."),
}


class LazyGroup(TyperGroup):
    """Loads a subcommand's module when it is named, so that `slacktier hash` does not import a web server."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module_name, _ = COMMANDS[cmd_name]
        return _load(cmd_name, module_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _load(name: str, module_name: str) -> Any:
    module = importlib.import_module(module_name)
    app: Any = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(add_completion=False)
        app.command(name=name)(module.command)
    loaded: Any = typer.main.get_command(app)
    loaded.name = name
    for command in (loaded, *getattr(loaded, "commands", {}).values()):
        command.help = _join_lines(command.help or "")
    return loaded


def _join_lines(text: str) -> str:
    """Help text whose paragraphs fit any terminal: docstring lines are joined, except where one is indented."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(part if "\n " in part else part.replace("\n", " ") for part in paragraphs)


app = typer.Typer(
    cls=LazyGroup, add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
)


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    """LLM lookup tables on NVMe or another node's memory, placed by each layer's prefetch window."""
    if version:
        typer.echo(f"slacktier {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command; our own errors end in one line and an exit code, never in a traceback."""
    try:
        app()
    except SlackTierError as exc:
        print(f"slacktier: {exc}", file=sys.stderr)
        if exc.hint:
            print(f"hint: {exc.hint}", file=sys.stderr)
        sys.exit(2 if isinstance(exc, ConfigError) else 1)
    except OSError as exc:
        # The system refused something that no command foresaw, such as a full disk under standard output.
        print(f"slacktier: {exc}", file=sys.stderr)
        sys.stdout = None  # it may hold what cannot be written; do not try again at exit
        sys.exit(1)
