"""Entry point of ``memsampd``: the one place that prints errors and decides the exit status."""

from __future__ import annotations

import argparse
import gc
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NoReturn

from memsampd import __version__
from memsampd.cli.command import COMMANDS, CommandEntry
from memsampd.cli.environment import use_one_thread
from memsampd.cli.failures import is_debugging, message_of
from memsampd.errors import MemsampdError, UsageError
from memsampd.names import printable

EXIT_FAILURE = 1
EXIT_INTERRUPTED = 128 + 2  # what a shell reports for SIGINT
EXIT_BROKEN_PIPE = 128 + 13  # ... and for SIGPIPE


@cache
def _terminal_columns() -> int:
    """Width of the terminal, else 80: as shutil tells it, which takes 3 ms to load."""
    with suppress(KeyError, ValueError):
        if (columns := int(os.environ["COLUMNS"])) > 0:
            return columns
    with suppress(AttributeError, ValueError, OSError):
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80  # type: ignore[union-attr]
    return 80


class _Formatter(argparse.HelpFormatter):
    """argparse makes one for each argument that is declared."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_terminal_columns() - 2)


class OneLineParser(argparse.ArgumentParser):
    """A parser that raises what is wrong instead of printing the whole usage."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_Formatter, **options)

    def error(self, message: str) -> NoReturn:
        """Raise a usage error.

        Raises:
            UsageError: always.
        """
        raise UsageError(message, f"see '{self.prog} --help'")


def build_parser(commands: Sequence[CommandEntry] = COMMANDS) -> argparse.ArgumentParser:
    """Make the parser of these commands, importing each of them."""
    parser = OneLineParser(
        prog="memsampd",
        description="Phases and miss-ratio curves of any running Linux process.",
    )
    parser.add_argument("--version", action="version", version=f"memsampd {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    for entry in commands:
        command = entry.load()
        subparser = subparsers.add_parser(
            entry.name, help=command.help, description=f"{command.help}."
        )
        command.prepare_parser(subparser)
        subparser.set_defaults(command=command)
    return parser


def _named_commands(argv: Sequence[str]) -> Sequence[CommandEntry]:
    """Return the entry of the command that ``argv`` starts with, or all of them."""
    return [entry for entry in COMMANDS if entry.name in argv[:1]] or COMMANDS


def _run(argv: Sequence[str]) -> int:
    try:
        gc.disable()  # nothing of what is loaded becomes garbage
        try:
            args = build_parser(_named_commands(argv)).parse_args(argv)
        finally:
            gc.enable()
        status = args.command.run(args)
    except SystemExit as stop:  # argparse, after --help and --version
        status = stop.code
    sys.stdout.flush()  # a reader that went away shows here, not at interpreter exit
    return int(status or 0)


def _prepare_streams() -> None:
    """Have output go nowhere if there is none, and never fail for a letter that it has not got."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _fail(error: Exception) -> int:
    with suppress(OSError):  # nobody may be there to read it: the status tells it, too
        print(f"memsampd: error: {printable(message_of(error))}", file=sys.stderr)
    return error.exit_status if isinstance(error, MemsampdError) else EXIT_FAILURE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Whatever fails is one line on standard error; a traceback appears only with
    ``MEMSAMPD_DEBUG=1`` in the environment.

    Args:
        argv: arguments without the program's name; those of the process if None.

    Returns:
        The exit status: 0, 1 for a failure, 2 for a wrong command line, 130 when interrupted.
    """
    use_one_thread()
    _prepare_streams()
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # What is still buffered would fail again when the interpreter exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except Exception as error:
        if is_debugging():
            raise
        return _fail(error)


def run_and_exit() -> NoReturn:
    """Run the command of this process and end it.

    Commands leave nothing open, so the interpreter need not clear up: that would take as much CPU
    time as some seconds of watching a process.
    """
    status = main()
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    run_and_exit()
