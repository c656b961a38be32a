"""``memsampd trace``: bursts of accesses into a file; and what can be done with such files."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memsampd.cli.observing import announce, logged, pausing_between_holds, stopping_on
from memsampd.cli.run import attached_to, start, status_of
from memsampd.cli.trace_tools import TOOLS
from memsampd.errors import UsageError

if TYPE_CHECKING:
    from memsampd.daemon.tracing import TraceConfig, TraceResult


class TraceCommand:
    """Traces a process, or hands on to one of the tools.

    What the first word is that is no option decides: the name of a tool, ``--`` before a program,
    or a process id, behind which options may follow as before it.
    """

    name = "trace"
    help = "write a process's data references to a file"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        prog = self._prog = parser.prog
        self._parser_type = type(parser)
        parser.usage = (
            f"{prog} -o FILE [options] PID\n"
            f"       {prog} -o FILE [options] -- CMD ARGS...\n"
            f"       {prog} {{{','.join(TOOLS)}}} FILE [options]"
        )
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = "tools for traces:\n" + "".join(
            f"  {prog} {tool.name:<8} {tool.help}\n" for tool in TOOLS.values()
        )
        _add_options(parser)
        parser.add_argument(
            "words", nargs=argparse.REMAINDER, metavar="PID | -- CMD ARGS", help="what to trace"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Trace.

        Raises:
            UsageError: the command line is wrong.
            MemsampdError: the process cannot be traced, a file not be read or written.
        """
        match args.words:
            case []:
                raise UsageError("nothing to trace", "name a process id, or a program behind --")
            case [name, *rest] if name in TOOLS:
                return self._run_tool(name, rest)
            case ["--", *command]:
                if not command:
                    raise UsageError("no program to run", "name it behind --")
                return self._run_program(command, args)
            case [pid, *rest]:
                parser = self._parser_type(prog=f"{self._prog} PID")
                _add_options(parser)
                return self._run_attached(pid, parser.parse_args(rest, args))
        raise AssertionError("unreachable")

    def _run_tool(self, name: str, words: Sequence[str]) -> int:
        tool = TOOLS[name]
        parser = self._parser_type(prog=f"{self._prog} {name}", description=f"{tool.help}.")
        tool.prepare_parser(parser)
        return tool.run(parser.parse_args(words))

    def _run_attached(self, pid: str, args: argparse.Namespace) -> int:
        path, config = _output(args), _config(args)
        from memsampd.daemon.tracing import traced

        with (
            logged(),
            traced(pid, path, config, overwrite=args.force) as tracing,
            stopping_on(tracing, signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
            pausing_between_holds(),
        ):
            _summarise(tracing.run(), path)
        return 0

    def _run_program(self, command: Sequence[str], args: argparse.Namespace) -> int:
        if args.tid is not None:
            raise UsageError("--tid is for a process that runs already", "leave it out")
        path, config = _output(args), _config(args)
        from memsampd.daemon.tracing import traced  # before the program starts

        process = start(command)

        def trace() -> None:
            tracing = traced(process.pid, path, config, overwrite=args.force, command=command)
            with (
                attached_to(process, tracing) as attached,
                stopping_on(attached, signal.SIGINT),  # which the program gets by itself
            ):
                _summarise(attached.run(), path)

        with logged():
            return status_of(process, trace, "trace")


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what may stand before a process id or program, and behind a process id."""
    add = parser.add_argument
    add("-o", "--output", type=Path, metavar="FILE", help="trace to write")
    add("-f", "--force", action="store_true", help="replace it if it exists")
    add(
        "--accesses",
        type=int,
        default=1_000_000,
        metavar="N",
        help="accesses of the longest burst; most end earlier (default: %(default)s)",
    )
    add("--bursts", type=int, default=1, metavar="K", help="bursts to take (default: %(default)s)")
    add(
        "--tid",
        type=int,
        metavar="T",
        help="thread to trace (default: any, in proportion to their CPU time)",
    )
    add(
        "--max-stop",
        type=float,
        default=0.005,
        metavar="S",
        help="how long a burst may hold the target, in seconds (default: %(default)s)",
    )
    add(
        "--deadline",
        type=float,
        default=10.0,
        metavar="S",
        help="time for a burst to begin (default: %(default)s)",
    )
    add(
        "--interval",
        type=float,
        default=0.1,
        metavar="S",
        help="mean pause between bursts (default: %(default)s)",
    )
    add("--seed", type=int, default=0, help="seed of all random choices (default: %(default)s)")


def _output(args: argparse.Namespace) -> Path:
    if args.output is None:
        raise UsageError("no file to write", "name it with -o")
    from memsampd.exporters.files import TRACE, check_new

    output: Path = args.output
    check_new(output, TRACE, args.force)
    return output


def _config(args: argparse.Namespace) -> TraceConfig:
    from memsampd.daemon.tracing import TraceConfig

    return TraceConfig(
        accesses=args.accesses,
        bursts=args.bursts,
        tid=args.tid,
        max_stop_seconds=args.max_stop,
        deadline_seconds=args.deadline,
        interval_seconds=args.interval,
        seed=args.seed,
    )


def _summarise(result: TraceResult, path: Path) -> None:
    announce(f"ended: {result.reason}")
    size_bytes = path.stat().st_size
    announce(f"{path}: {result.bursts} bursts, {result.rows} accesses, {size_bytes} bytes")
    if result.refusals:
        counts = ", ".join(f"{reason} {n}" for reason, n in sorted(result.refusals.items()))
        announce(f"bursts that could not be had: {counts}")


COMMAND = TraceCommand()
