"""``memsampd trace info|dump|convert``: what can be done with traces."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from memsampd.cli.command import Command
from memsampd.cli.export import check_no_input
from memsampd.errors import UsageError


class InfoTool:
    """Says what a trace holds."""

    name = "info"
    help = "say what a trace holds"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("trace", type=Path, metavar="FILE", help="trace to read")

    def run(self, args: argparse.Namespace) -> int:
        """Print it.

        Raises:
            TraceError: the trace cannot be read or is damaged; what is whole has been printed.
        """
        from memsampd.exporters.trace import TraceReader
        from memsampd.exporters.trace.digest import digest_lines

        with TraceReader(args.trace) as trace:
            for line in digest_lines(trace):
                sys.stdout.write(f"{line}\n")
        return 0


class DumpTool:
    """Prints a trace."""

    name = "dump"
    help = "print a trace, an access a line"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("trace", type=Path, metavar="FILE", help="trace to read")
        _add_burst(parser)
        parser.add_argument("--limit", type=int, metavar="N", help="print at most N accesses")

    def run(self, args: argparse.Namespace) -> int:
        """Print it.

        Raises:
            UsageError: there is no such burst.
            TraceError: the trace cannot be read or is damaged; what is whole has been printed.
        """
        from memsampd.exporters.trace import TraceReader
        from memsampd.exporters.trace.listing import list_trace

        if args.limit is not None and args.limit < 0:
            raise UsageError(f"a limit of {args.limit}", "choose at least 0")
        with TraceReader(args.trace) as trace:
            for text in list_trace(trace, args.burst, args.limit):
                sys.stdout.buffer.write(text)
        return 0


class ConvertTool:
    """Makes files of other formats from traces, and traces from them."""

    name = "convert"
    help = "convert between traces, lackey's text and Dinero's input"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("input", type=Path, metavar="FILE", help="trace or lackey's text")
        parser.add_argument(
            "-o", "--output", type=Path, metavar="OUT", required=True, help="file to write"
        )
        parser.add_argument("-f", "--force", action="store_true", help="replace it if it exists")
        parser.add_argument(
            "--from",
            dest="source",
            choices=("trace", "lackey"),
            help="format of FILE (default: what it looks like)",
        )
        parser.add_argument(
            "--to",
            choices=("trace", "lackey", "dinero", "dinero4"),
            default="trace",
            help="format of OUT; dinero is read by Dinero III and IV, dinero4 has sizes "
            "(default: %(default)s)",
        )
        _add_burst(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Convert.

        Raises:
            UsageError: there is no such burst, or the two files are one.
            TraceError: a file cannot be read or written, or is damaged; what is whole has been
                converted.
        """
        from memsampd.exporters.trace.copying import copy_bursts, open_reader, open_writer

        with open_reader(args.input, args.source) as reader:
            check_no_input(args.output, [args.input])
            opened = partial(open_writer, args.output, args.to, reader.header, overwrite=args.force)
            copy_bursts(reader, opened, args.burst)
        return 0


def _add_burst(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--burst", type=int, metavar="B", help="only this burst; the first is 0 (default: all)"
    )


TOOLS: dict[str, Command] = {tool.name: tool for tool in (InfoTool(), DumpTool(), ConvertTool())}
