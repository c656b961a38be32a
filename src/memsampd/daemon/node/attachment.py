"""Attaching to one process, from time to time, and what that has cost."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import msgspec

from memsampd.daemon.accesses import (
    Accesses,
    choose_accesses,
    settled,
    source_name,
    tracing_thread,
)
from memsampd.daemon.composition import compose
from memsampd.daemon.config import SessionConfig
from memsampd.daemon.node.budget import Costs
from memsampd.daemon.node.discovery import ProcessKey
from memsampd.daemon.node.resting import REST_SECONDS, RestingTracer
from memsampd.daemon.own_cpu import CpuAccount
from memsampd.daemon.pipeline_parts import change_parts
from memsampd.daemon.session import Session
from memsampd.daemon.store.database import ProfileStore
from memsampd.daemon.surroundings import Surroundings
from memsampd.daemon.tracer import TracerThread
from memsampd.errors import CapabilityError, TargetError
from memsampd.exporters.protocols import Exporter
from memsampd.exporters.snapshot import TargetInfo
from memsampd.sampler.process.identity import ProcessHandle
from memsampd.sampler.process.target import TargetFacts, check_target

EXEC_SECONDS = 0.1
"""To wait for an exec: others have their turns, and it is tried again."""
# A replica is kept for so long while others have their turn.
_SHORT_REST_SECONDS = 3.0
_FILES_PART = 0.25  # of all descriptors that the daemon may open
_SMALL_RING_CPUS = 16


@dataclass(frozen=True, slots=True)
class Common:
    """What all targets of a node have in common.

    Attributes:
        around: this machine, and what it allows.
        allows_bursts: says whether the node's budget leaves room for one.
        publish_seconds: says how often their states are told, at most.
        exporters: are shown their states.
        start: runs what starts a tracing thread, where that one inherits no low priority.
        store: what is kept of programs; None: nothing is.
    """

    around: Surroundings
    allows_bursts: Callable[[], bool]
    publish_seconds: Callable[[], float]
    exporters: Sequence[Exporter]
    start: Callable[[Callable[[], TracerThread]], TracerThread]
    store: ProfileStore | None = None

    @property
    def ring_bytes(self) -> int:
        """Size of the buffers of samples: one for each CPU."""
        return (64 if len(self.around.machine.cpus) <= _SMALL_RING_CPUS else 16) * 1024


@dataclass(frozen=True, slots=True)
class _Live:
    """What there is while a process is attached to."""

    session: Session
    tracer: RestingTracer
    stack: ExitStack


class Attachment:
    """Has a session with one process while it is open.

    Args:
        key: the process.
        common: what it shares with others.
        permit: says whether a burst may be taken now.
        is_permitted: says whether the process may be observed for who asked.
        tell: tells people what is known again.

    Attributes:
        info: who it is, as far as that is known.
        owner: user id, once it was open.
    """

    def __init__(
        self,
        key: ProcessKey,
        common: Common,
        permit: Callable[[], bool],
        is_permitted: Callable[[], bool],
        tell: Callable[[str], None],
    ) -> None:
        self.info = TargetInfo(key.pid, key.start_ticks, "", "")
        self.owner = 0
        self._key = key
        self._common = common
        self._permit = permit
        self._is_permitted = is_permitted
        self._tell = tell
        self._live: _Live | None = None
        self._turn_cpu_seconds = 0.0
        self._before = Costs()  # of sessions that have ended

    @property
    def session(self) -> Session | None:
        """The session; None while the process is not attached to."""
        return None if self._live is None else self._live.session

    def open(self, config: SessionConfig) -> Session:
        """Attach.

        Raises:
            TargetError: it is gone.
            MemsampdError: something else is in the way.
            OSError: the same.
        """
        key, common = self._key, self._common
        with ExitStack() as stack:
            handle = stack.enter_context(ProcessHandle(key.pid))
            if handle.identity.start_ticks != key.start_ticks:
                raise TargetError(f"process {key.pid} is gone")
            facts = _checked(key.pid, config)
            config = settled(config, self._choose(config, facts.refusal))
            self.info = TargetInfo(**msgspec.structs.asdict(facts.identity))
            self.owner = facts.status.uid
            tracers: list[RestingTracer] = []

            def make_tracer(pid: int, config: SessionConfig, account: CpuAccount) -> RestingTracer:
                make = self._tracer_maker(config, account)
                tracers.append(RestingTracer(make, source_name(config)))
                return tracers[0]

            parts = compose(
                self.info,
                handle,
                config,
                common.around,
                stack,
                make_tracer,
                permit=self._permit,
                ring_bytes=common.ring_bytes,
                most_files=_share_of_files(),
                store=common.store,
                tell=self._tell,
            )
            # All of the above named a pid: it has to have been this process's all the time.
            if not (handle.alive() and self._is_permitted()):
                raise TargetError(f"process {key.pid} is gone")
            self._turn_cpu_seconds = 0.0
            session = Session(parts, config, common.exporters)
            self._live = _Live(session, tracers[0], stack.pop_all())
        return session

    def is_there(self) -> bool:
        """Whether the process has not ended, as far as that can be told now."""
        try:
            with ProcessHandle(self._key.pid) as handle:
                return handle.identity.start_ticks == self._key.start_ticks and handle.alive()
        except TargetError:
            return False
        except CapabilityError:
            return True

    def close(self) -> None:
        """Let go of the process, if it is attached to."""
        self._before = self.costs()
        live, self._live = self._live, None
        if live is not None:
            live.stack.close()

    def change_accesses(self, wanted: SessionConfig) -> Accesses | None:
        """Take accesses from elsewhere from now on; what was learned of the process stays.

        Returns:
            From where; None: from where they came, or the process is not attached to.

        Raises:
            MemsampdError: they cannot be had from there; all goes on as before.
        """
        if self._live is None:
            return None
        session, tracer = self._live.session, self._live.tracer
        accesses = self._choose(wanted, _checked(self._key.pid, wanted).refusal)
        config = settled(wanted, accesses)
        source = source_name(config)
        if source == tracer.source_name:
            return None
        parts = session.parts
        change_parts(parts.pipeline, config, self._common.around, parts.clock_name)
        session.change(config)
        tracer.change(self._tracer_maker(config, parts.own_cpu), source)
        return accesses

    def _choose(self, config: SessionConfig, refusal: TargetError | None) -> Accesses:
        trial = self._common.around.replica_trial
        try:
            return choose_accesses(self._key.pid, config, refusal, trial)
        finally:
            trial.close()  # bursts of it are taken by a process of its own

    def _tracer_maker(
        self, config: SessionConfig, account: CpuAccount
    ) -> Callable[[], TracerThread]:
        make = partial(tracing_thread, self._key.pid, config, account)
        return lambda: self._common.start(make)

    @property
    def is_awake(self) -> bool:
        """Whether there is a tracing thread now."""
        return self._live is not None and self._live.tracer.is_awake

    def step(self, *, has_bursts: bool) -> list[int]:
        """Take a turn of the session, which there has to be.

        Args:
            has_bursts: it is its turn to have some; else its tracing thread is to end soon.

        Returns:
            Processes that it has forked since the last one.
        """
        assert self._live is not None, "it is open"
        session, tracer = self._live.session, self._live.tracer
        before = time.thread_time()
        with session.parts.own_cpu.charged():
            session.step()
        self._turn_cpu_seconds += time.thread_time() - before
        children = session.parts.branches.take_children()
        if not has_bursts:
            tracer.give_up_waiting()
        tracer.rest(REST_SECONDS if has_bursts else _SHORT_REST_SECONDS)
        return children

    def costs(self) -> Costs:
        """What it has cost so far."""
        if self._live is None:
            return self._before
        ledger = self._live.session.parts.pipeline.parts.ledger
        overhead = ledger.overhead()
        return self._before + Costs(
            burst_cpu_seconds=ledger.burst_cpu_seconds,
            replica_cpu_seconds=overhead.replica_cpu_seconds,
            own_cpu_seconds=self._turn_cpu_seconds + ledger.burst_cpu_seconds,
            stop_seconds=overhead.stop_seconds,
        )


def _checked(pid: int, config: SessionConfig) -> TargetFacts:
    return check_target(
        pid, may_be_sealed=config.accesses != "bursts", patience_seconds=EXEC_SECONDS
    )


def _share_of_files() -> int | None:
    """Descriptors that one target may take; None: there is no limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else int(hard * _FILES_PART)
