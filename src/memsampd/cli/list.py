"""``memsampd list``: what a daemon observes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memsampd.names import printable


class ListCommand:
    """Asks the daemon for its targets."""

    name = "list"
    help = "list what a daemon observes"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        add_socket(parser)
        parser.add_argument("--json", action="store_true", help="print all that is known as JSON")

    def run(self, args: argparse.Namespace) -> int:
        """Print a line a target.

        Raises:
            MemsampdError: there is no daemon, or it does not answer.
        """
        targets = ask(args.socket, "list")["targets"]
        if args.json:
            import json

            sys.stdout.write(json.dumps(targets) + "\n")
        else:
            sys.stdout.write(table(targets))
        return 0


def add_socket(parser: argparse.ArgumentParser) -> None:
    """Declare the option that names a daemon."""
    parser.add_argument(
        "--socket", type=Path, metavar="PATH", help="the daemon's socket (default: the usual one)"
    )


def ask(
    socket: Path | None, command: str, *, timeout_seconds: float = 60.0, **fields: Any
) -> dict[str, Any]:
    """Ask a daemon; its answer. Without a name your own one, or else the machine's.

    Raises:
        MemsampdError: there is none, or it refuses.
    """
    from memsampd.daemon.node.config import find_socket
    from memsampd.daemon.node.control_client import ControlClient

    with ControlClient(socket or find_socket(), timeout_seconds) as client:
        return client.ask(command, **fields)


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as lines of columns, left-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)


_HEADINGS = ("PID", "COMMAND", "STATE", "RULE", "PHASES", "BURSTS", "MISS RATIO", "WHY")


def table(targets: Sequence[dict[str, Any]]) -> str:
    """Targets as text, a line each; the miss ratio is that of the largest cache."""
    return columns([_HEADINGS, *map(_row, targets)])


def why_of(target: dict[str, Any]) -> str:
    """What is in the way of a target, with the remedy; empty if nothing is."""
    return "; ".join(filter(None, (target["reason"], target["remedy"])))


def _row(target: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(target["pid"]),
        printable(target["command"]),
        target["state"],
        target["rule"],
        str(target.get("phases", "-")),
        str(target.get("bursts", "-")),
        _miss_ratio(target.get("caches") or []),
        printable(why_of(target)),
    )


def _miss_ratio(caches: Sequence[dict[str, Any]]) -> str:
    if not caches or caches[-1]["miss_ratio"] is None:
        return "-"
    last = caches[-1]
    return f"{last['low']:.1%}..{last['high']:.1%} {last['name']}"


COMMAND = ListCommand()
