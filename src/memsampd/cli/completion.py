"""``memsampd completion``: what a shell needs to complete memsampd's command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memsampd.errors import CapabilityError

SHELLS = ("bash", "zsh", "fish")
_PIDS = {
    "bash": "_memsampd_pids",
    "zsh": "_pids",
    "fish": "(__fish_complete_pids)",
    "preamble": {
        "bash": '_memsampd_pids() { compgen -W "$(ps -e -o pid= 2>/dev/null)" -- "$1"; }',
    },
}


class CompletionCommand:
    """Prints the completion script of a shell."""

    name = "completion"
    help = "print the completion script of a shell"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("shell", choices=SHELLS, help="the shell")

    def run(self, args: argparse.Namespace) -> int:
        """Print it.

        Raises:
            CapabilityError: shtab is missing.
        """
        sys.stdout.write(script(args.shell))
        return 0


def script(shell: str) -> str:
    """Return the script of one of :data:`SHELLS`: commands, options, their choices, files, pids.

    Raises:
        CapabilityError: shtab is missing.
    """
    try:
        import shtab
    except ImportError as error:
        raise CapabilityError(
            "completion needs shtab", "install it with: pip install 'memsampd[completion]'"
        ) from error
    from memsampd.cli.main import build_parser

    parser = build_parser()
    for action in _actions(parser):
        if action.type is Path:
            action.complete = shtab.FILE
        elif action.metavar == "PID":
            action.complete = _PIDS
    return str(shtab.complete(parser, shell=shell))


def _actions(parser: argparse.ArgumentParser) -> Iterator[Any]:
    """Yield the arguments of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)


COMMAND = CompletionCommand()
