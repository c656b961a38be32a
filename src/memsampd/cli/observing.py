"""What ``attach``, ``run`` and ``demo`` share: their options, and a session from them."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO

from memsampd import _core
from memsampd.errors import RecordingError, UsageError
from memsampd.exporters.listen import DEFAULT_LISTEN
from memsampd.machines.cpulist import parse_cpu_list
from memsampd.names import printable

if TYPE_CHECKING:
    from memsampd.cli.status import Display
    from memsampd.daemon.config import OutputConfig, SessionConfig
    from memsampd.exporters.snapshot import Snapshot

logger = logging.getLogger(__name__)

_PAUSE_PATIENCE_SECONDS = 2.0  # a hold takes milliseconds; a wait for a thread to run, longer


@contextmanager
def loading() -> Iterator[None]:
    """What is loaded meanwhile stays: do not look for garbage in it, now or later.

    What a turn needs of it lies in few pages, see own_heap.c.
    """
    _core.use_huge_pages()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of a session."""
    _add_outputs(parser)
    _add_choices(parser)
    _add_limits(parser)


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    """Where results go, and for how long."""
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write a recording")
    parser.add_argument(
        "-f", "--force", action="store_true", help="replace the recording if it exists"
    )
    parser.add_argument(
        "--store",
        type=Path,
        metavar="FILE",
        help="keep what is learned of the program there, and begin with what is known of it",
    )
    parser.add_argument("--duration", type=float, metavar="S", help="detach after so many seconds")
    parser.add_argument("--json", action="store_true", help="print one JSON object a window")
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing but errors")
    parser.add_argument(
        "--events",
        type=Path,
        metavar="FILE",
        help="write one JSON object a window there, and nothing else; a file is replaced",
    )
    listen = parser.add_mutually_exclusive_group()
    listen.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help=f"serve Prometheus metrics there (default: {DEFAULT_LISTEN}, or a free port if that "
        "is in use)",
    )
    listen.add_argument("--no-listen", action="store_true", help="serve no metrics")
    parser.add_argument(
        "--linger",
        type=float,
        default=0.0,
        metavar="S",
        help="at the end, serve the last metrics until they have been read, for so long at most; "
        "with --page for so long",
    )
    parser.add_argument(
        "--page",
        action="store_true",
        help="serve a page with live figures and a JSON API there, too, from a process without "
        "rights",
    )


def _add_choices(parser: argparse.ArgumentParser) -> None:
    """What it may cost, when bursts are taken, and where what is seen comes from."""
    parser.add_argument(
        "--budget",
        type=float,
        default=0.01,
        metavar="SHARE",
        help="share of the target's CPU time that bursts may cost it (default: %(default)s)",
    )
    parser.add_argument(
        "--own-cpu",
        type=float,
        default=0.05,
        metavar="SHARE",
        help="CPU time that memsampd's processes may use, as a share of the target's; beyond it "
        "bursts wait (default: %(default)s)",
    )
    parser.add_argument(
        "--schedule",
        choices=("phase-guided", "periodic", "burst", "all", "none"),
        default="phase-guided",
        help="which windows get a burst (default: %(default)s)",
    )
    parser.add_argument(
        "--window",
        type=float,
        default=0.1,
        metavar="S",
        help="CPU time of a window in seconds (default: %(default)s)",
    )
    parser.add_argument(
        "--period",
        type=float,
        metavar="S",
        help="CPU time between two branch samples in seconds (default: 0.002, up to 0.004 where an "
        "interrupt of the timer takes more than 10 us)",
    )
    parser.add_argument(
        "--branches",
        choices=("auto", "timer", "ticks", "pmu"),
        default="auto",
        help="where branch samples come from (default: the PMU, else the kernel's ticks, if they "
        "pass their trial; else a timer)",
    )
    parser.add_argument(
        "--clock",
        choices=("auto", "registers", "counters"),
        default="auto",
        help="what accesses are timed by (default: the PMU's counters if they pass their trial)",
    )
    parser.add_argument(
        "--accesses",
        choices=("auto", "bursts", "watchpoints"),
        help="where accesses come from: bursts hold the target for milliseconds, watchpoints stop "
        "nothing and tell less (default: bursts where the target may be traced)",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    """What the target has to bear, and memsampd's own processes."""
    parser.add_argument(
        "--burst",
        type=int,
        default=1_000_000,
        metavar="N",
        help="accesses of a long burst; most have 200,000 at most (default: %(default)s)",
    )
    parser.add_argument(
        "--max-stop",
        type=float,
        default=0.005,
        metavar="S",
        help="how long a burst may hold the target, in seconds; 0: as --accesses watchpoints "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--no-watchpoints",
        action="store_true",
        help="leave the debug registers alone: distances longer than bursts are not measured",
    )
    parser.add_argument(
        "--cpu-affinity",
        type=cpu_list,
        default=(),
        metavar="LIST",
        help="CPUs for memsampd's processes, as 0-3,8 (default: all)",
    )
    parser.add_argument(
        "--nice",
        type=int,
        metavar="N",
        help="niceness of the analysis (default: 5)",
    )
    parser.add_argument(
        "--follow-forks",
        action="store_true",
        help="sample branches of child processes, too; bursts are taken of the process itself "
        "only: for children use the daemon's follow_children",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of all random choices (default: %(default)s)"
    )


def cpu_list(text: str) -> tuple[int, ...]:
    """Parse a list of CPUs.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        cpus = parse_cpu_list(text)
    except ValueError:
        cpus = ()
    if not cpus:
        raise argparse.ArgumentTypeError(f"'{text}' is no list of CPUs such as 0-3,8")
    return cpus


def configs(args: argparse.Namespace) -> tuple[SessionConfig, OutputConfig]:
    """Read the options.

    Raises:
        UsageError: a value is out of range.
        MemsampdError: the recording exists already, and is not to be replaced, or what is named as
            the store is none.
    """
    from memsampd.daemon.config import OutputConfig, SessionConfig

    config = SessionConfig(
        duration_seconds=args.duration,
        window_seconds=args.window,
        period_seconds=args.period,
        schedule=args.schedule,
        budget_share=args.budget,
        own_cpu_share=args.own_cpu,
        burst_accesses=args.burst,
        max_stop_seconds=args.max_stop,
        cpu_affinity=args.cpu_affinity,
        niceness=args.nice,
        follow_forks=args.follow_forks,
        watches=not args.no_watchpoints,
        seed=args.seed,
        branches=args.branches,
        clock=args.clock,
        accesses=args.accesses or "auto",
    )
    _check_together(args)
    is_usual = args.listen is None
    listen = None if args.no_listen else DEFAULT_LISTEN if is_usual else args.listen
    if args.output is not None:  # before a program is started that would have to be started again
        from memsampd.exporters.files import check_new
        from memsampd.exporters.recording.format import FORMAT

        check_new(args.output, FORMAT.kind, args.force)
    if args.store is not None:
        from memsampd.daemon.store.file import check_named

        check_named(args.store)
    output = OutputConfig(
        recording=args.output,
        overwrite=args.force,
        listen=listen,
        any_port=is_usual,
        page=args.page,
        store=args.store,
        linger_seconds=args.linger,
    )
    return config, output


def _check_together(args: argparse.Namespace) -> None:
    """Refuse options that exclude each other, or that nothing would come of."""
    if not args.linger >= 0:
        raise UsageError(f"--linger {args.linger} is out of range", "give seconds, 0 or more")
    if args.no_listen and (args.page or args.linger):
        option = "--page" if args.page else "--linger"
        raise UsageError(f"{option} and --no-listen exclude each other", "leave one of them out")
    if args.force and args.output is None:
        raise UsageError("--force without a recording", "name it with -o")
    named = {"-o": args.output, "--events": args.events, "--store": args.store}
    outputs = [(option, path) for option, path in named.items() if path is not None]
    for (one, path), (other, second) in combinations(outputs, 2):
        if os.path.realpath(path) == os.path.realpath(second):
            raise UsageError(f"{one} and {other} name the same file, {path}", "name another one")


def observers(args: argparse.Namespace, stream: TextIO) -> list[Display]:
    """Who shows a session as the options say: a display, and what writes events to a file.

    Raises:
        RecordingError: the file of events cannot be written.
    """
    from memsampd.cli.status import JsonStatus

    displays = [] if args.quiet and not args.json else [observer(args.json, stream)]
    if args.events is None:
        return displays
    try:
        # It stays open to the end of the process, and each line is flushed.
        events = open(args.events, "w", encoding="utf-8", opener=_opened_as_it_is)  # noqa: SIM115
        return [*displays, JsonStatus(events)]
    except OSError as error:
        raise RecordingError(
            f"cannot write {args.events}: {error.strerror}", "choose a file in a writable directory"
        ) from error


def _opened_as_it_is(path: str, flags: int) -> int:
    """Open a file without emptying it: :func:`replace_events` does, once there will be others."""
    return os.open(path, flags & ~os.O_TRUNC, 0o666)


def replace_events(displays: Iterable[Display]) -> None:
    """Empty the file of events: the process is observed now."""
    for display in displays:
        if display.stream not in (sys.stdout, sys.stderr):
            with suppress(OSError):  # a pipe, or a device
                display.stream.truncate(0)


def observer(as_json: bool, stream: TextIO) -> Display:
    """The display that fits: JSON if asked for, live on a terminal, else lines."""
    from memsampd.cli.status import JsonStatus, LiveStatus, PlainStatus

    if as_json:
        return JsonStatus(stream)
    return LiveStatus(stream) if stream.isatty() else PlainStatus(stream)


def announce(text: str) -> None:
    """Tell the user, beside the results; who cannot be told any more does without."""
    with suppress(OSError):
        sys.stderr.write(f"memsampd: {printable(text)}\n")
        sys.stderr.flush()


class _Announcing(logging.Handler):
    """Tells the user what the daemon logs."""

    def emit(self, record: logging.LogRecord) -> None:
        """Tell it, warnings as such."""
        level = f"{record.levelname.lower()}: " if record.levelno > logging.INFO else ""
        announce(f"{level}{record.getMessage()}")


@contextmanager
def logged(is_quiet: bool = False) -> Iterator[None]:
    """Have the user told what memsampd logs meanwhile; errors only where that is to be quiet."""
    ours, handler = logging.getLogger("memsampd"), _Announcing()
    before = ours.level
    ours.addHandler(handler)
    ours.setLevel(logging.ERROR if is_quiet else logging.INFO)
    try:
        yield
    finally:
        ours.removeHandler(handler)
        ours.setLevel(before)


class Stoppable(Protocol):
    """A session, or a trace."""

    def stop(self, reason: str) -> None:
        """End soon; may be called from a signal handler."""


def _is_kept_off(number: int) -> bool:
    """Whether whoever started us wants a hang-up ignored, as nohup does."""
    return number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


@contextmanager
def hearing(numbers: Iterable[int], hear: Callable[[int], None]) -> Iterator[None]:
    """Have something done on these signals; not on a hang-up that nohup has us ignore."""
    heard = [number for number in numbers if not _is_kept_off(number)]
    before = {number: signal.signal(number, lambda number, _: hear(number)) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stopping_on(
    session: Stoppable, *numbers: int, then: Callable[[int], None] = lambda number: None
) -> AbstractContextManager[None]:
    """End the session cleanly on these signals: :func:`hearing`.

    Args:
        session: that is to end.
        numbers: of the signals.
        then: called with such a signal, too.
    """

    def stop(number: int) -> None:
        session.stop(f"{signal.Signals(number).name}")
        then(number)

    return hearing(numbers, stop)


@contextmanager
def pausing_between_holds() -> Iterator[None]:
    """Have Ctrl-Z stop us when no thread of a target is held: it would stay so until we go on."""

    def pause(number: int, frame: object) -> None:
        from memsampd.sampler.replica.holding import HOLDS

        with HOLDS.none(_PAUSE_PATIENCE_SECONDS):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)  # goes on behind this when we are continued
            signal.signal(number, pause)

    is_usual = signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL
    if is_usual:
        signal.signal(signal.SIGTSTP, pause)
    try:
        yield
    finally:
        if is_usual:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)


def summarise(snapshot: Snapshot, reason: str) -> None:
    """Say how it went: the whole run first."""
    from memsampd.cli.status import status_lines

    logger.info("ended: %s", reason)
    for line in status_lines(snapshot):
        logger.info("%s", line)
