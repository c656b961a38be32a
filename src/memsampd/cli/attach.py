"""``memsampd attach``: observe a process that runs already."""

from __future__ import annotations

import argparse
import signal
import sys

from memsampd.cli.observing import (
    add_options,
    announce,
    configs,
    logged,
    observer,
    stopping_on,
    summarise,
)


class AttachCommand:
    """Attaches to a live process."""

    name = "attach"
    help = "observe a running process"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("pid", metavar="PID", help="process to observe")
        add_options(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Observe until the time is up, the target ends or Ctrl-C.

        Raises:
            MemsampdError: it cannot be observed.
        """
        if sys.stderr.isatty():  # what comes next takes a moment
            announce(f"attaching to process {args.pid}")
        from memsampd.daemon.attach import attached

        config, output = configs(args)
        display = observer(args.json, sys.stdout)
        with (
            logged(),
            attached(args.pid, config, output, [display]) as session,
            stopping_on(session, signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
        ):
            reason = session.run()
            summarise(session.snapshot(), reason)
        return 0


COMMAND = AttachCommand()
