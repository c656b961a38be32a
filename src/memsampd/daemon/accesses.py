"""Where accesses come from: bursts of a held thread, or walks beside it, which stop nothing.

The choice between them, and the thread that takes them.
"""

from __future__ import annotations

import errno
import logging
import os
import random
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from memsampd import _core
from memsampd.daemon.config import SessionConfig
from memsampd.daemon.own_cpu import CpuAccount
from memsampd.daemon.priority import WALKS_NICENESS, yield_to_others
from memsampd.daemon.tracer import TracerThread
from memsampd.errors import CapabilityError, CaptureError, TargetError
from memsampd.sampler.replica.precedence import warn_of_quota
from memsampd.sampler.replica.source import ReplicaSource

if TYPE_CHECKING:
    from memsampd.sampler.walk.source import WalkSource

logger = logging.getLogger(__name__)

_NO_PROCESS = (1 << 22) + 1  # above the kernel's own limit of ids
_NO_STOP = "--max-stop 0: nothing is to be stopped"


class Accesses(msgspec.Struct, frozen=True):
    """What was chosen.

    Attributes:
        source: which.
        why: for people.
    """

    source: Literal["bursts", "watchpoints"]
    why: str


def ptrace_refusal() -> str:
    """Why this process may not call ptrace(2) at all (seccomp); empty if it may.

    No process is traced for it: none has the id that is asked for.
    """
    try:
        _core.probe_ptrace(_NO_PROCESS)
    except OSError as error:
        return "" if error.errno == errno.ESRCH else f"ptrace is refused: {error.strerror}"
    return ""


class ReplicaTrial:
    """Tries whether a replica can be made, until one was: that takes 10 ms of CPU time.

    Then it is told, too, if holds may be prolonged by a quota of our own CPU time.
    """

    def __init__(self) -> None:
        self._was_made = False
        self._kept: tuple[int, ReplicaSource] | None = None

    def refusal(self, pid: int, max_stop_seconds: float) -> str:
        """Why none can be made for a process; empty if one was, for this or another.

        Args:
            pid: the process.
            max_stop_seconds: how long it may be held.
        """
        if self._was_made:
            return ""
        try:
            source = ReplicaSource(pid)
        except (OSError, CaptureError) as error:
            return f"no replica can be made: {error}"
        self._kept, self._was_made = (pid, source), True
        warn_of_quota(source.process(), max_stop_seconds)
        return ""

    def take(self, pid: int) -> ReplicaSource | None:
        """Hand over the replica that was made, if it is of this process: its taker closes it."""
        if self._kept is None or self._kept[0] != pid:
            return None
        source, self._kept = self._kept[1], None
        return source

    def close(self) -> None:
        """Close the replica that was made, if nobody took it."""
        if self._kept is not None:
            self._kept[1].close()
            self._kept = None


def choose_accesses(
    pid: int, config: SessionConfig, refusal: TargetError | None, trial: ReplicaTrial
) -> Accesses:
    """Choose, as the user wants, else bursts where they can be had.

    Args:
        pid: the target.
        config: what the user wants.
        refusal: why the target may not be traced; None if it may.
        trial: tries to make a replica.

    Raises:
        TargetError: bursts are wanted, and it may not be traced.
        CapabilityError: bursts are wanted, and cannot be had here; or nothing is left.
    """
    if config.stops_nothing:
        return Accesses("watchpoints", "watchpoints are wanted")
    if config.max_stop_seconds == 0:
        return _watchpoints(config, _NO_STOP)
    why = str(refusal) if refusal is not None else ptrace_refusal()
    why = why or trial.refusal(pid, config.max_stop_seconds)
    if not why:
        return Accesses("bursts", "the target may be held, and a replica was made")
    if config.accesses == "bursts" and refusal is not None:
        raise refusal
    chosen = _watchpoints(config, why)
    logger.warning("accesses by watchpoints only, as no burst can be taken: %s", why)
    return chosen


def try_beforehand(config: SessionConfig, trial: ReplicaTrial) -> None:
    """Try what :func:`choose_accesses` may ask of any process, before there is one to ask about.

    Nothing is tried where nothing is to be stopped: there ptrace(2) is not called at all.

    Raises:
        CapabilityError: as that does.
    """
    if config.stops_nothing:
        return
    if config.max_stop_seconds == 0:
        why = _NO_STOP
    else:
        why = ptrace_refusal() or trial.refusal(os.getpid(), config.max_stop_seconds)
        trial.close()
    if why:
        _watchpoints(config, why)


def _watchpoints(config: SessionConfig, why: str) -> Accesses:
    """Watchpoints in place of bursts, if that is not forbidden."""
    if config.accesses == "bursts":
        raise CapabilityError(
            f"--accesses bursts: {why}", "--accesses watchpoints does without; memsampd doctor"
        )
    if not config.watches:
        raise CapabilityError(
            f"no burst can be taken ({why}), and --no-watchpoints forbids the rest",
            "leave --no-watchpoints out",
        )
    return Accesses("watchpoints", why)


def settled(config: SessionConfig, accesses: Accesses) -> SessionConfig:
    """The settings of a session in which that was chosen."""
    return replace(config, accesses=accesses.source)


def source_name(config: SessionConfig) -> str:
    """Name of the access source of a session whose choice is settled."""
    if not config.stops_nothing:
        return ReplicaSource.name
    from memsampd.sampler.walk.source import WalkSource

    return WalkSource.name


def tracing_thread(
    pid: int, config: SessionConfig, account: CpuAccount, trial: ReplicaTrial | None = None
) -> TracerThread:
    """Start the thread that takes bursts of a process, or walks beside it.

    Args:
        pid: the process.
        config: how to observe.
        account: pays for the thread, and for those that the core has for bursts.
        trial: may have a replica of the process.
    """
    rng = random.Random(config.seed)
    if config.stops_nothing:
        tracer = TracerThread(pid, lambda: _walks(pid, config, rng), rng, config.line_bytes)
    else:
        made = None if trial is None else trial.take(pid)
        tracer = TracerThread(pid, lambda: _bursts(pid, account, made), rng, config.line_bytes)
    account.add_thread(tracer.thread)
    return tracer


def _bursts(pid: int, account: CpuAccount, made: ReplicaSource | None) -> ReplicaSource:
    source = made or ReplicaSource(pid)
    source.charge = account.charge_burst
    return source


def _walks(pid: int, config: SessionConfig, rng: random.Random) -> WalkSource:
    """Walks, by this thread, which goes behind the target: nobody waits for it."""
    from memsampd.sampler.walk.source import WalkSource

    yield_to_others(config.niceness, WALKS_NICENESS, preempts=False)
    return WalkSource(pid, rng)
