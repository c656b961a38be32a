"""``memsampd status``: how a daemon fares, and what it observes."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from memsampd.cli.list import add_socket, ask, columns, why_of
from memsampd.names import age_words, printable

_UNKNOWN = "-"


class StatusCommand:
    """Asks the daemon how it fares."""

    name = "status"
    help = "how a daemon fares, what it observes, and what is in the way"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        add_socket(parser)
        parser.add_argument("--json", action="store_true", help="print the daemon's answer as JSON")

    def run(self, args: argparse.Namespace) -> int:
        """Print the daemon's state, then a line a target.

        Raises:
            MemsampdError: there is no daemon, it does not answer, or it may not be asked.
        """
        from memsampd.daemon.node.config import find_socket

        socket = args.socket or find_socket()
        status = ask(socket, "status")["status"]
        if args.json:
            import json

            sys.stdout.write(json.dumps(status) + "\n")
        else:
            sys.stdout.write("".join(f"{line}\n" for line in status_lines(status, socket)))
        return 0


def status_lines(status: dict[str, Any], socket: Path) -> Iterator[str]:
    """Yield the daemon's state, a table of its targets, and what is in the way of each.

    Args:
        status: the daemon's answer.
        socket: that it was asked at.
    """
    yield from _daemon_lines(status, socket)
    targets = status["targets"]
    if targets:
        yield ""
        yield from table(targets).splitlines()
    whys = [f"{each['pid']}: {why}" for each in targets for why in _whys(each)]
    if whys:
        yield ""
        yield from whys


def _daemon_lines(status: dict[str, Any], socket: Path) -> Iterator[str]:
    age = age_words(max(time.time() - status["started_unix_seconds"], 0.0))
    yield printable(
        f"memsampd {status['memsampd_version']}, process {status['pid']} at {socket}, "
        f"started {age} ago"
    )
    states = [f"{count} {state}" for state, count in status["by_state"].items() if count]
    yield (
        f"targets: {', '.join(states) or 'none'}; without room: {status['left_out']}; "
        f"ended or let go: {status['ended_targets']}"
    )
    yield (
        f"own CPU: {status['own_cpu_share']:.1%} of a core in the last minute, budget "
        f"{status['own_cpu_budget_share']:.1%}; {status['own_cpu_seconds']:.1f} s so far"
    )
    yield (
        f"targets held: {status['stop_share']:.2%} of the last minute, budget "
        f"{status['stop_budget_share']:.2%}; {status['stop_seconds']:.2f} s so far"
    )
    yield (
        f"resident: {1e-6 * status['rss_bytes']:.0f} MB; threads: {status['threads']}; "
        f"descriptors: {status['open_descriptors']}; "
        f"longest pass of the loop in the last minute: {1e3 * status['loop_seconds']:.0f} ms"
    )
    for name in ("reload_trouble", "store_trouble"):
        if status[name]:
            yield printable(f"{name.removesuffix('_trouble')}: {status[name]}")


def table(targets: Sequence[dict[str, Any]]) -> str:
    """Targets as text, a line each; miss ratios are those of the present phase, in per cent."""
    from memsampd.cli.top_rows import levels_of, ratio_cell

    levels = levels_of(targets)
    ratios = [f"{level} %" for level in levels]
    heading = ["PID", "COMMAND", "STATE", "PHASES", *ratios, "OWN CPU", "HELD", "BACKEND"]
    rows = [heading]
    for each in targets:
        caches = {cache["name"]: cache for cache in each.get("caches_now", ())}
        backend = each.get("backend", {})
        rows.append(
            [
                str(each["pid"]),
                printable(each["command"]),
                each["state"],
                str(each.get("phases", _UNKNOWN)),
                *(ratio_cell(caches.get(level)) for level in levels),
                f"{each['own_cpu_seconds']:.2f} s",
                f"{1e3 * each['stop_seconds']:.1f} ms",
                f"{backend['accesses']}, {backend['branches']}" if backend else _UNKNOWN,
            ]
        )
    return columns(rows)


def _whys(target: dict[str, Any]) -> Iterator[str]:
    """Yield what is in the way of a target, with the remedy; without a curve, all that is."""
    from memsampd.cli.top_rows import sentence

    if target["state"] == "idle":
        return  # it is in nobody's way
    if why := why_of(target):
        yield printable(f"{target['state']}: {why}")
    caches = target.get("caches", ())
    if caches and caches[-1]["miss_ratio"] is None:
        yield from map(sentence, target["not_known"])


COMMAND = StatusCommand()
