"""What a session is composed of, behind its seams, and who is told of it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

import msgspec

from memsampd.daemon.branches import MappedBranches
from memsampd.daemon.own_cpu import CpuAccount
from memsampd.daemon.pipeline import Pipeline
from memsampd.daemon.sampled_lines import SampledLines
from memsampd.daemon.sampling import SamplingPlan
from memsampd.daemon.tracer import CaptureOrder, CaptureResult
from memsampd.estimate.events import EstimatorEvent
from memsampd.exporters.snapshot import Snapshot, TargetInfo
from memsampd.machines.machine_file import MemoryPeak
from memsampd.phases.records import Assignment, Window
from memsampd.sampler.perf.watchpoints import Watchpoints
from memsampd.sampler.process.identity import ProcessHandle

if TYPE_CHECKING:
    from memsampd.daemon.store.keeper import ProfileKeeper
    from memsampd.exporters.past import Past


class State(Protocol):
    """Tells the present state, at the price of all curves: ask only to show it."""

    def __call__(self, *, only: Collection[int] | None = None) -> Snapshot:
        """Tell it.

        Args:
            only: of its estimate, these phases are enough, a fraction of the price; None: all.
        """


class SessionObserver(Protocol):
    """Someone who watches a session (a status display).

    After an OSError of one, which is logged, the session goes on without that one.
    """

    def window(self, window: Window, assignment: Assignment, state: State) -> None:
        """A window has ended, in this phase; the state may be one after further windows."""

    def turn(self, state: State) -> None:
        """Called some times a second, whether anything has happened or not."""


class Recorder(Protocol):
    """Someone who keeps records (a recording)."""

    def write(self, record: EstimatorEvent) -> None:
        """Keep one."""


class BurstTaker(Protocol):
    """Takes bursts while the session goes on (a tracing thread)."""

    source_name: str

    @property
    def has_results(self) -> bool:
        """Whether something has come since :meth:`results` was called."""

    def order(self, order: CaptureOrder) -> None:
        """Have a burst taken, once the last one's result has been told."""

    def end_seeking(self) -> None:
        """Wait no longer for a thread to come to code that is sought."""

    def results(self) -> list[CaptureResult]:
        """What has come since the last call: one result an order."""

    def close(self) -> None:
        """Take no more, and leave nothing in the target; may be called twice."""


class SessionParts(msgspec.Struct, frozen=True):
    """All that a session is composed of, behind the seams.

    Attributes:
        target: who it is.
        handle: holds on to it.
        branches: where samples come from.
        tracer: takes bursts.
        pipeline: decides.
        own_cpu: account of what this process does for the target.
        cache_sizes_bytes: this machine's caches by name.
        clock_name: how accesses are timed.
        started_seconds: CLOCK_MONOTONIC time of the attach.
        target_cpu_at_start: CPU time that the target had used then.
        memory_peak: what memory gives at most; None if it was not measured.
        recorders: given every record besides those that are asked for.
        watchpoints: watch words of the running target; None: none are watched.
        keeper: is shown every new state, to keep it; None: nothing is kept.
        past: what the target did before a restart of memsampd; None: nothing is known of it.
        sampled_lines: tells lines that a PMU has chosen; None: those of bursts and walks only.
        sampling: charges samples, and says for which part of the time they are taken.
    """

    target: TargetInfo
    handle: ProcessHandle
    branches: MappedBranches
    tracer: BurstTaker
    pipeline: Pipeline
    own_cpu: CpuAccount
    cache_sizes_bytes: dict[str, int]
    clock_name: str
    started_seconds: float
    target_cpu_at_start: float
    sampling: SamplingPlan
    memory_peak: MemoryPeak | None = None
    recorders: tuple[Recorder, ...] = ()
    watchpoints: Watchpoints | None = None
    keeper: ProfileKeeper | None = None
    past: Past | None = None
    sampled_lines: SampledLines | None = None

    @property
    def backend(self) -> dict[str, str]:
        """Names of what stands behind the seams, by role."""
        return {
            "branches": self.branches.name,
            "accesses": self.tracer.source_name,
            "clock": self.clock_name,
            "long_distances": "none" if self.watchpoints is None else self.watchpoints.name,
            **({} if self.sampled_lines is None else {"lines": self._line_sources}),
            **({"distances": "counters"} if self.watchpoints and self.watchpoints.counts else {}),
        }

    @property
    def _line_sources(self) -> str:
        """Who tells lines that are watched, where it is not only who tells accesses."""
        assert self.sampled_lines is not None
        return f"{self.tracer.source_name}, {self.sampled_lines.name}"
