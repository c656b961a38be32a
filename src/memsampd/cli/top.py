"""``memsampd top``: all targets at a glance."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from typing import TYPE_CHECKING

from memsampd.cli.list import add_socket
from memsampd.errors import CapabilityError, UsageError

if TYPE_CHECKING:
    from memsampd.cli.targets import TargetsSource

_WAIT_SECONDS = 5.0


class TopCommand:
    """Shows targets in a table that is kept up to date."""

    name = "top"
    help = "all targets at a glance: misses, bandwidth, phases"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        add_socket(parser)
        parser.add_argument("--url", metavar="URL", help="ask a daemon or an 'attach --page' there")
        parser.add_argument(
            "--pid",
            action="append",
            default=[],
            metavar="PID",
            help="observe this process oneself (may be given several times)",
        )
        parser.add_argument("--once", action="store_true", help="print the table once, for scripts")
        parser.add_argument("--json", action="store_true", help="with --once: print documents")
        parser.add_argument(
            "--duration",
            type=float,
            metavar="S",
            help=f"with --once and --pid: look after so many seconds (default: {_WAIT_SECONDS})",
        )
        parser.add_argument(
            "--sort",
            metavar="KEY",
            default="b",
            help="p, c, h, 1, 2, 3, b, t or u, as in the table (default: %(default)s)",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Show targets until the user quits, or once.

        Raises:
            UsageError: options that do not fit together.
            MemsampdError: targets cannot be learnt of.
        """
        if args.json and not args.once:
            raise UsageError("--json without --once", "add --once")
        if args.sort not in _KEYS:
            raise UsageError(f"no column {args.sort!r}", f"give one of {', '.join(_KEYS)}")
        given = [f"--{name}" for name in ("url", "socket", "pid") if getattr(args, name)]
        if len(given) > 1:
            raise UsageError(f"both {given[0]} and {given[1]}", "give one of them")
        if args.duration is not None:
            if not (args.once and args.pid):
                raise UsageError("--duration goes with --once and --pid", "add them")
            if not 0 <= args.duration < math.inf:
                raise UsageError(f"--duration {args.duration} is out of range", "give seconds")
        if not args.once:
            _check_terminal()
        source = _source(args)
        try:
            if args.once:
                sys.stdout.write(_once(source, args))
            else:
                from memsampd.cli.top_app import TopApp

                TopApp(source, args.sort).run()
        finally:
            source.close()
        return 0


_KEYS = ("p", "c", "h", "1", "2", "3", "b", "t", "u")


def _check_terminal() -> None:
    """Raise what keeps a live table from being shown."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("top needs a terminal", "use 'memsampd top --once' in scripts")
    try:
        import textual  # noqa: F401
    except ImportError as error:
        raise CapabilityError(
            "a live table needs textual", "pip install 'memsampd[top]', or use --once"
        ) from error


def _source(args: argparse.Namespace) -> TargetsSource:
    from memsampd.cli.targets import ControlTargets, HttpTargets, OwnTargets

    if args.url:
        return HttpTargets(args.url)
    if args.pid:
        return OwnTargets(args.pid)
    return ControlTargets(args.socket)


def _once(source: TargetsSource, args: argparse.Namespace) -> str:
    from memsampd.cli.top_rows import (
        History,
        columns_of,
        levels_of,
        rows_of,
        sorted_rows,
        table_lines,
    )

    if args.pid:
        time.sleep(_WAIT_SECONDS if args.duration is None else args.duration)
    targets = source.targets()
    if args.json:
        return f"{json.dumps({'version': 1, 'targets': targets}, indent=1)}\n"
    history = History()
    history.add(targets)
    levels = levels_of(targets)
    columns = columns_of(levels)
    at = next((i for i, column in enumerate(columns) if column.key == args.sort), 0)
    rows = sorted_rows(rows_of(targets, levels, history, now=False), at, columns[at].is_text, False)
    return "".join(f"{line}\n" for line in table_lines(columns, rows))


COMMAND = TopCommand()
