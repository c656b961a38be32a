"""What a command of the command line is, and the list of them."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Protocol, cast


class Command(Protocol):
    """One subcommand.

    A command's module is imported whenever its help is, so it imports what is heavy inside
    ``run``. Errors are raised as :class:`~memsampd.errors.MemsampdError`; only
    :func:`memsampd.cli.main.main` prints them.
    """

    name: str
    help: str

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it; returns the exit status."""


class CommandEntry:
    """Where a command lives; a named tuple would take 1.5 ms of each start to be made.

    Args:
        name: what the user types.
        module: module that holds it as ``COMMAND``.
    """

    def __init__(self, name: str, module: str) -> None:
        self.name = name
        self.module = module

    def load(self) -> Command:
        """Import the command."""
        return cast(Command, import_module(self.module).COMMAND)


# One line a command, in the order of ``memsampd --help``.
COMMANDS: tuple[CommandEntry, ...] = (
    CommandEntry("attach", "memsampd.cli.attach"),
    CommandEntry("run", "memsampd.cli.run"),
    CommandEntry("daemon", "memsampd.cli.daemon"),
    CommandEntry("list", "memsampd.cli.list"),
    CommandEntry("status", "memsampd.cli.daemon_status"),
    CommandEntry("top", "memsampd.cli.top"),
    CommandEntry("detach", "memsampd.cli.detach"),
    CommandEntry("check-config", "memsampd.cli.check_config"),
    CommandEntry("store", "memsampd.cli.store"),
    CommandEntry("trace", "memsampd.cli.trace"),
    CommandEntry("report", "memsampd.cli.report"),
    CommandEntry("export", "memsampd.cli.export"),
    CommandEntry("diff", "memsampd.cli.diff"),
    CommandEntry("advise", "memsampd.cli.advise"),
    CommandEntry("doctor", "memsampd.cli.doctor"),
    CommandEntry("machine", "memsampd.cli.machine"),
    CommandEntry("dashboards", "memsampd.cli.dashboards"),
    CommandEntry("demo", "memsampd.cli.demo"),
    CommandEntry("completion", "memsampd.cli.completion"),
)
