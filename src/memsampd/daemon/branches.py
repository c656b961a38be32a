"""Where branch samples come from, and by which names their code goes."""

from __future__ import annotations

import logging
import time
from collections import deque

import msgspec

from memsampd.daemon.config import SessionConfig
from memsampd.daemon.notes import NoteTeller
from memsampd.daemon.store.keys import process_name
from memsampd.errors import TargetError
from memsampd.phases.branchmap import BranchMap, BranchMaps
from memsampd.sampler.perf.counts import NO_COUNTERS
from memsampd.sampler.perf.ended import Ended
from memsampd.sampler.perf.source import StreamedBranches, TaskClockSource
from memsampd.sampler.perf.ticks import Ticks, TickSource
from memsampd.sampler.pmu.choice import Choice, PmuTrials
from memsampd.sampler.process.code_names import CodeNames
from memsampd.sampler.process.memory import CodeReader
from memsampd.sampler.records import BranchSamples

logger = logging.getLogger(__name__)

_CHILDREN = 1024  # that are remembered: nobody may ask


class MappedBranches:
    """A branch source that tells execs, and forgets the code of children that did one, or ended.

    Args:
        pid: the process that was attached to: what is known of its code goes when the pipeline
            knows of its exec.
        source: where samples come from.
        maps: what was decoded.
    """

    def __init__(self, pid: int, source: StreamedBranches, maps: BranchMaps) -> None:
        self._pid = pid
        self._source = source
        self._maps = maps
        self._notes = NoteTeller(logger)
        self._ended = Ended()
        self._children: deque[int] = deque(maxlen=_CHILDREN)
        self.name = source.name
        self.period_seconds = source.period_seconds

    def read(self, timeout_seconds: float) -> BranchSamples:
        """Wait for samples, at most so long, and return all that have come."""
        samples = self._source.read(timeout_seconds)
        self._notes.tell(self._source.notes)
        if self._source.ended:
            time.sleep(min(timeout_seconds, 0.01))
        execs, ended = [], []
        for event in self._source.take_events():
            if event.kind == "exec" and event.pid == self._pid:
                execs.append(event.time_seconds)
            elif event.pid == self._pid and event.kind == "exit":
                pass  # bursts that came last still ask for names of its code
            elif event.kind == "exec":
                self._maps.forget(event.pid)
            elif event.kind == "exit" and event.tid == event.pid:
                ended.append(event.pid)
            elif event.kind == "fork" and event.parent_pid == self._pid != event.pid:
                self._children.append(event.pid)
        for pid in self._ended.at_read(ended):
            self._maps.forget(pid)
        return msgspec.structs.replace(samples, exec_seconds=tuple(execs)) if execs else samples

    def latest(self, count: int) -> BranchSamples:
        """The latest samples of the process itself; none if fewer have come since the last look."""
        return self._source.latest(count)

    @property
    def ring_samples(self) -> int:
        """So many samples of a CPU wait to be read before others are lost."""
        return self._source.ring_samples

    def take_children(self) -> list[int]:
        """Processes that the target has forked since this was asked last."""
        children = list(self._children)
        self._children.clear()
        return children

    def close(self) -> None:
        """Release every descriptor and mapping."""
        self._source.close()


def named_branches(pid: int) -> BranchMaps:
    """Branches of a process, and of those that it forks, by names that outlive them.

    Raises:
        TargetError: it is gone.
    """
    try:
        process = process_name(pid).encode()
    except OSError as error:
        raise TargetError(f"process {pid} is gone") from error
    return BranchMaps(lambda each: BranchMap(CodeReader(each), CodeNames(each, process)))


def chosen_branches(
    pid: int,
    config: SessionConfig,
    trials: PmuTrials,
    ticks: Ticks,
    choice: Choice,
    period_seconds: float,
    ring_bytes: int,
    most_files: int | None,
) -> StreamedBranches:
    """The branch source that was chosen, with counters if they are the clock."""
    if choice.branches == "ticks":
        return TickSource(
            pid,
            ticks,
            period_seconds=period_seconds,
            follow_forks=config.follow_forks,
            ring_bytes=ring_bytes,
            most_files=most_files,
            seed=config.seed + 4,
        )
    counters = trials.counter_set if choice.clock == "counters" else NO_COUNTERS
    if choice.branches == "timer":
        return TaskClockSource(
            pid,
            period_seconds=period_seconds,
            follow_forks=config.follow_forks,
            ring_bytes=ring_bytes,
            most_files=most_files,
            counters=counters,
            seed=config.seed + 4,
        )
    from memsampd.sampler.pmu.branches import PmuBranchSource

    return PmuBranchSource(
        pid,
        trials.branch_events,
        period_seconds=period_seconds,
        follow_forks=config.follow_forks,
        ring_bytes=ring_bytes,
        most_files=most_files,
        counters=counters,
        seed=config.seed,
    )
