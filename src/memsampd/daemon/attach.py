"""Composing a session: which implementation stands behind each seam."""

from __future__ import annotations

import dataclasses
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
from numpy.typing import NDArray

from memsampd import __version__
from memsampd.daemon.book import PhaseBook
from memsampd.daemon.config import OutputConfig, SessionConfig
from memsampd.daemon.session import Session, SessionObserver, SessionParts
from memsampd.daemon.tracer import TracerThread
from memsampd.errors import UsageError
from memsampd.exporters.analysis import default_sizes
from memsampd.exporters.http import MetricsServer
from memsampd.exporters.prometheus import PrometheusExporter
from memsampd.exporters.recording import HeaderRecord, RecordingWriter
from memsampd.exporters.snapshot import TargetInfo
from memsampd.machines.machine import Machine, read_machine
from memsampd.models.statcache import StatCache
from memsampd.models.statstack import StatStack
from memsampd.phases.branchmap import BranchMap, BranchMaps
from memsampd.phases.drift import DriftMonitor
from memsampd.phases.leader import LeaderFollower
from memsampd.phases.predictor import RunLengthMarkov
from memsampd.phases.schedule import BurstShape, make_schedule
from memsampd.phases.windows import WindowCutter
from memsampd.sampler.burst_clock import BurstClock
from memsampd.sampler.perf.interrupts import measure_sample_seconds
from memsampd.sampler.perf.source import TaskClockSource
from memsampd.sampler.process.identity import ProcessHandle
from memsampd.sampler.process.memory import read_present
from memsampd.sampler.process.target import check_target
from memsampd.sampler.protocols import AccessSource
from memsampd.sampler.records import BranchSamples
from memsampd.sampler.replica.source import ReplicaSource


class MappedBranches:
    """A task-clock source that forgets decoded code of processes that executed another program.

    Args:
        source: where samples come from.
        maps: what was decoded.
    """

    def __init__(self, source: TaskClockSource, maps: BranchMaps) -> None:
        self._source = source
        self._maps = maps
        self.name = source.name
        self.period_seconds = source.period_seconds

    def read(self, timeout_seconds: float) -> BranchSamples:
        """Wait for samples, at most so long, and return all that have come."""
        samples = self._source.read(timeout_seconds)
        if self._source.ended:
            time.sleep(min(timeout_seconds, 0.01))
        for event in self._source.take_events():
            if event.kind == "exec" or (event.kind == "exit" and event.tid == event.pid):
                self._maps.forget(event.pid)
        return samples

    def close(self) -> None:
        """Release every descriptor and mapping."""
        self._source.close()


def code_reader(pid: int) -> Callable[[int, int], bytes]:
    """A function that reads the code of a process, or nothing where there is none.

    Pages that it has not got are not read: that would bring them in for it.
    """

    def read(address: int, size_bytes: int) -> bytes:
        try:
            return read_present(pid, address, size_bytes)
        except (OSError, OverflowError):
            return b""

    return read


def curve_sizes(machine: Machine) -> NDArray[np.int64]:
    """Sizes of live curves: powers of two, and the caches of this machine."""
    caches = [size for size in machine.cache_sizes_bytes().values() if size >= 1024]
    return np.unique(np.concatenate([default_sizes(), np.array(caches, dtype=np.int64)]))


def access_source(pid: int, config: SessionConfig | None = None) -> AccessSource:
    """The access source that this machine has: bursts from a replica."""
    config = config or SessionConfig()
    return ReplicaSource(pid, line_bytes=config.line_bytes)


def burst_shape(longest_accesses: int) -> BurstShape:
    """The usual lengths and costs, no burst being longer than asked for."""
    usual = BurstShape()
    return BurstShape(
        min_accesses=min(usual.min_accesses, longest_accesses),
        usual_accesses=min(usual.usual_accesses, longest_accesses),
        max_accesses=longest_accesses,
    )


@contextmanager
def confined(cpus: Sequence[int]) -> Iterator[None]:
    """Keep this thread, and those that it starts, on some CPUs; on all that it has if none.

    Raises:
        UsageError: it may use none of them.
    """
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus or before)
    except (OSError, ValueError, OverflowError) as error:
        named = ",".join(map(str, cpus))
        raise UsageError(
            f"--cpu-affinity {named}: there are no such CPUs, or we may not use them",
            f"choose from {','.join(map(str, sorted(before)))}",
        ) from error
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def attached(
    pid: int | str,
    config: SessionConfig,
    output: OutputConfig,
    observers: Sequence[SessionObserver] = (),
    announce: Callable[[str], None] = lambda text: None,
) -> Iterator[Session]:
    """Attach to a process: a session that is ready to run.

    Args:
        pid: the process; a string is taken as typed by a user.
        config: how to observe.
        output: where the results go.
        observers: told of every window.
        announce: told what the user should know, a sentence each.

    Raises:
        MemsampdError: something is in the way; the message names the remedy.
    """
    facts = check_target(pid)
    for note in facts.notes:
        announce(note)
    target = TargetInfo(**dataclasses.asdict(facts.identity))
    machine = read_machine()
    with ExitStack() as stack:
        stack.enter_context(confined(config.cpu_affinity))
        handle = stack.enter_context(ProcessHandle(target.pid))
        prometheus = PrometheusExporter()
        if output.listen is not None:
            server = MetricsServer(prometheus.registry, output.listen)
            stack.callback(server.close)
            announce(f"metrics: {server.url}")
        maps = BranchMaps(lambda each: BranchMap(code_reader(each)))
        source = TaskClockSource(
            target.pid, period_seconds=config.period_seconds, follow_forks=config.follow_forks
        )
        stack.callback(source.close)
        for note in source.notes:
            announce(note)
        rng = random.Random(config.seed)
        tracer = TracerThread(
            target.pid, lambda: access_source(target.pid, config), rng, config.line_bytes
        )
        stack.callback(tracer.close)
        parts = _parts(target, handle, MappedBranches(source, maps), tracer, config, maps, machine)
        recorders = []
        if output.recording is not None:
            recorders.append(
                RecordingWriter(
                    output.recording,
                    _header(parts, config, machine),
                    overwrite=output.overwrite,
                )
            )
            stack.callback(recorders[0].close)
        yield Session(parts, config, (prometheus, *recorders), recorders, observers)


def _parts(
    target: TargetInfo,
    handle: ProcessHandle,
    branches: MappedBranches,
    tracer: TracerThread,
    config: SessionConfig,
    maps: BranchMaps,
    machine: Machine,
) -> SessionParts:
    share = {} if config.schedule == "all" else {"share": config.budget_share}
    return SessionParts(
        target=target,
        handle=handle,
        branches=branches,
        tracer=tracer,
        clock=BurstClock(),
        cutter=WindowCutter(config.window_seconds, config.bins, maps.lookup, seed=config.seed),
        clusterer=LeaderFollower(),
        predictor=RunLengthMarkov(),
        schedule=make_schedule(
            config.schedule,
            random.Random(config.seed + 1),
            window_seconds=config.window_seconds,
            shape=burst_shape(config.burst_accesses),
            **share,
        ),
        drift=DriftMonitor(),
        book=PhaseBook((StatStack(), StatCache()), curve_sizes(machine), config.line_bytes),
        cache_sizes_bytes=dict(machine.cache_sizes_bytes()),
        sample_seconds=measure_sample_seconds(),
    )


def _header(parts: SessionParts, config: SessionConfig, machine: Machine) -> HeaderRecord:
    return HeaderRecord(
        memsampd_version=__version__,
        target=parts.target,
        backend={
            "branches": parts.branches.name,
            "accesses": parts.tracer.source_name,
            "clock": parts.clock.name,
        },
        line_bytes=config.line_bytes,
        start_unix_seconds=time.time(),
        cache_sizes_bytes=parts.cache_sizes_bytes,
        machine={"cpu": machine.cpu.name, "cpus": len(machine.cpus)},
        config=dataclasses.asdict(config),
    )
