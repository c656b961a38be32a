"""``memsampd run``: start a program and observe it."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import TYPE_CHECKING

from memsampd.cli.environment import environment_of_programs
from memsampd.cli.observing import (
    add_options,
    announce,
    configs,
    hearing,
    loading,
    logged,
    observers,
    pausing_between_holds,
    stopping_on,
    summarise,
)
from memsampd.errors import MemsampdError, UsageError

if TYPE_CHECKING:
    from memsampd.daemon.attach import Preparation
    from memsampd.daemon.config import OutputConfig, SessionConfig

_NOT_FOUND, _NOT_EXECUTABLE, _KILLED = 127, 126, 128
_ENDING = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


class RunCommand:
    """Runs a program; its exit status is ours."""

    name = "run"
    help = "start a program and observe it"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        add_options(parser)
        parser.add_argument(
            "program", nargs=argparse.REMAINDER, metavar="-- CMD ARGS", help="program to run"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Run and observe it.

        Raises:
            UsageError: no program is named.
            MemsampdError: it cannot be started or observed.
        """
        command = args.program[1:] if args.program[:1] == ["--"] else args.program
        if not command:
            raise UsageError("no program to run", "name it behind --")
        with loading():
            config, output = configs(args)
            # Results of the program go to standard output: ours must not get between them.
            displays = observers(args, sys.stderr)
        with logged(), ExitStack() as stack:
            serving = stack.enter_context(ExitStack())
            # Before the program starts: it must not wait for us, and little of it is to be missed.
            ready = _prepared(config, output, serving)
            process = start(command)
            stack.enter_context(forwarding(process))
            if ready is not None:
                try:
                    with (
                        ready.attached(process.pid, displays) as session,
                        pausing_between_holds(),
                    ):
                        reason = session.run()
                        with stopping_on(session, *_ENDING, then=partial(hand_on, process)):
                            summarise(session.snapshot(), reason)
                            session.linger(output.linger_seconds)
                except (MemsampdError, OSError) as error:
                    announce(f"error: cannot observe the program: {error}")
            serving.close()
            if process.poll() is None:
                announce(f"process {process.pid} runs on unobserved, and its end is waited for")
            status = process.wait()
        return exit_status(status)


def _prepared(config: SessionConfig, output: OutputConfig, stack: ExitStack) -> Preparation | None:
    """What attaching needs; None, and it is said, if that cannot be had: the program runs on."""
    with loading():
        from memsampd.daemon.attach import prepared

    try:
        ready = stack.enter_context(prepared(config, output))
        ready.try_beforehand()
        return ready
    except UsageError:  # nothing has been started: the command line can be mended
        raise
    except (MemsampdError, OSError) as error:
        announce(f"error: cannot observe the program: {error}")
        return None


def start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a program with our standard streams, and what else we were given open.

    Raises:
        MemsampdError: it is not there or cannot be executed.
    """
    try:
        # What we have opened ourselves is closed by its exec.
        return subprocess.Popen(command, env=environment_of_programs(), close_fds=False)
    except OSError as error:
        failure = MemsampdError(f"cannot run {command[0]}: {error.strerror}", "check its name")
        failure.exit_status = (
            _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
        )
        raise failure from error


def exit_status(return_code: int) -> int:
    """Our exit status if the program's is ours: 128 + N where signal N killed it."""
    return _KILLED - return_code if return_code < 0 else return_code


def hand_on(process: subprocess.Popen[bytes], number: int) -> None:
    """Have the program have a signal, while it runs; Ctrl-C reaches it by itself."""
    # Not by its send_signal, which looks whether the program has ended, and so might be told of
    # a stop that is for its tracer.
    if number != signal.SIGINT and process.returncode is None:
        os.kill(process.pid, number)


def forwarding(process: subprocess.Popen[bytes]) -> AbstractContextManager[None]:
    """What is sent to us alone is handed on."""
    return hearing(_ENDING, partial(hand_on, process))


COMMAND = RunCommand()
