"""``memsampd attach``: observe a process that runs already."""

from __future__ import annotations

import argparse
import signal
import sys
from functools import partial
from typing import Any

from memsampd.cli.list import add_socket, ask
from memsampd.cli.observing import (
    add_options,
    announce,
    configs,
    loading,
    logged,
    observers,
    pausing_between_holds,
    replace_events,
    stopping_on,
    summarise,
)
from memsampd.errors import UsageError
from memsampd.names import printable

_FOR_DAEMON = ("--daemon", "--socket", "--accesses")


class _Noted(argparse.Action):
    """Keeps a value, and that its option was given."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values if self.nargs != 0 else True)
        if self.option_strings:
            namespace.given = (*getattr(namespace, "given", ()), self.option_strings[-1])


def _noted_flag(option_strings: list[str], dest: str, **options: Any) -> argparse.Action:
    return _Noted(option_strings, dest, nargs=0, default=False, **options)


class AttachCommand:
    """Attaches to a live process."""

    name = "attach"
    help = "observe a running process"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.register("action", None, _Noted)
        parser.register("action", "store_true", _noted_flag)
        parser.add_argument("pid", metavar="PID", help="process to observe")
        parser.add_argument(
            "--daemon",
            action="store_true",
            help="have a running daemon observe it, until it ends or memsampd detach",
        )
        add_socket(parser)
        add_options(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Observe until the time is up, the target ends or Ctrl-C.

        Raises:
            MemsampdError: it cannot be observed, or options exclude each other.
            OSError: it was observed, but not all output could be written.
        """
        given = getattr(args, "given", ())
        if args.daemon:
            return _ask_daemon(args, given)
        if "--socket" in given:
            raise UsageError("--socket names a daemon, and none is asked", "add --daemon")
        if args.accesses == "watchpoints" or args.max_stop == 0:  # nobody may be disturbed
            from memsampd.daemon.priority import yield_to_others

            yield_to_others(args.nice, preempts=False)
        if sys.stderr.isatty() and not args.quiet:  # what comes next takes a moment
            announce(f"attaching to process {args.pid}")
        with loading():
            from memsampd.daemon.attach import attached

            config, output = configs(args)
            displays = observers(args, sys.stdout)
        with (
            logged(args.quiet),
            attached(args.pid, config, output, displays) as session,
            stopping_on(session, signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
            pausing_between_holds(),
        ):
            replace_events(displays)
            for display in displays:
                if display.stream is sys.stdout:
                    display.at_no_reader = partial(session.stop, "nobody reads the output any more")
            reason = session.run()
            summarise(session.snapshot(), reason)
            session.linger(output.linger_seconds)
        for display in displays:
            if display.failure is not None:
                raise display.failure
        return 0


def _ask_daemon(args: argparse.Namespace, given: tuple[str, ...]) -> int:
    if unheard := [option for option in given if option not in _FOR_DAEMON]:
        raise UsageError(
            f"a daemon observes as its configuration says, without {', '.join(unheard)}",
            "leave that out, configure the daemon, or attach without --daemon",
        )
    from memsampd.sampler.process.target import parse_pid

    chosen = {} if args.accesses is None else {"accesses": args.accesses}
    answer = ask(args.socket, "attach", pid=parse_pid(args.pid), **chosen)
    how = "is observed now" if answer["is_new"] else "is observed already"
    if args.accesses is not None:
        how += f", accesses: {args.accesses}"
    sys.stdout.write(
        f"process {answer['pid']} ({printable(answer['command'])}) {how}: memsampd list\n"
    )
    return 0


COMMAND = AttachCommand()
