"""``memsampd detach``: have a daemon let go of a process."""

from __future__ import annotations

import argparse
import sys

from memsampd.cli.list import add_socket, ask
from memsampd.names import printable


class DetachCommand:
    """Asks the daemon to observe a process no more."""

    name = "detach"
    help = "have a daemon let go of a process"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("pid", metavar="PID", help="process to let go of")
        add_socket(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Ask for it.

        Raises:
            MemsampdError: there is no daemon, or it refuses.
        """
        from memsampd.sampler.process.target import parse_pid

        answer = ask(args.socket, "detach", pid=parse_pid(args.pid))
        sys.stdout.write(f"process {answer['pid']} ({printable(answer['command'])}) is let go\n")
        return 0


COMMAND = DetachCommand()
