"""``memsampd run``: start a program and observe it."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from memsampd.cli.environment import environment_of_programs
from memsampd.cli.failures import is_debugging, message_of
from memsampd.cli.observing import (
    add_options,
    configs,
    hearing,
    loading,
    logged,
    observers,
    pausing_between_holds,
    replace_events,
    stopping_on,
    summarise,
)
from memsampd.errors import MemsampdError, TargetError, UsageError

if TYPE_CHECKING:
    from memsampd.cli.status import Display
    from memsampd.daemon.attach import Preparation
    from memsampd.daemon.config import OutputConfig, SessionConfig

logger = logging.getLogger(__name__)
T = TypeVar("T")

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
        if args.quiet and args.json:
            raise UsageError(
                "--quiet and --json exclude each other: both are about standard error",
                "have the objects written to a file with --events",
            )
        with loading():
            config, output = configs(args)
            # Results of the program go to standard output: ours must not get between them.
            displays = observers(args, sys.stderr)
        with logged(args.quiet), ExitStack() as serving:
            # Before the program starts: it must not wait for us, and little of it is to be missed.
            ready = _prepared(config, output, serving)
            process = start(command)

            def observe() -> None:
                with serving:
                    if ready is not None:
                        _observe(process, ready, displays)

            return status_of(process, observe, "observe")


def _prepared(config: SessionConfig, output: OutputConfig, stack: ExitStack) -> Preparation | None:
    """What attaching needs; None, and it is said, if this machine has it not: the program runs.

    Raises:
        MemsampdError: outputs or options are not to be had: nothing has been started, and the
            command line can be mended.
    """
    with loading():
        from memsampd.daemon.attach import Preparation, exporting
        from memsampd.daemon.surroundings import Surroundings

    exporters = stack.enter_context(exporting(config, output))
    try:
        around = Surroundings.read()
    except (MemsampdError, OSError) as error:
        logger.error("cannot observe the program: %s", message_of(error))
        return None
    ready = Preparation(config, output, around, exporters)
    ready.try_beforehand()
    return ready


def _observe(
    process: subprocess.Popen[bytes], ready: Preparation, displays: Sequence[Display]
) -> None:
    with (
        attached_to(process, ready.attached(process.pid, displays)) as session,
        pausing_between_holds(),
    ):
        replace_events(displays)
        reason = session.run()
        with stopping_on(session, *_ENDING, then=partial(hand_on, process)):
            summarise(session.snapshot(), reason)
            session.linger(ready.output.linger_seconds)


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


@contextmanager
def attached_to(
    process: subprocess.Popen[bytes], attaching: AbstractContextManager[T]
) -> Iterator[T]:
    """Attach to a program that was started.

    Raises:
        TargetError: it has ended already.
        MemsampdError: something else is in the way.
    """
    with ExitStack() as stack:
        try:
            attached = stack.enter_context(attaching)
        except (TargetError, OSError) as error:  # what a process causes that is gone
            if process.poll() is None:
                raise
            raise TargetError(
                "it ended before it could be attached to", "give it more work"
            ) from error
        yield attached


def status_of(process: subprocess.Popen[bytes], observe: Callable[[], None], verb: str) -> int:
    """Observe a program, and wait for its end whatever becomes of that.

    Args:
        process: the program.
        observe: does it; while it runs, and afterwards, the program has the signals that we get.
        verb: for what that does.

    Returns:
        Our exit status: the program's, 128 + N where signal N killed it.
    """
    with forwarding(process):
        try:
            observe()
        except Exception as error:
            if is_debugging():
                raise
            logger.error("cannot %s the program: %s", verb, message_of(error))
        finally:
            if process.poll() is None:
                logger.info("process %d runs on unobserved, and its end is waited for", process.pid)
            return_code = process.wait()
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
