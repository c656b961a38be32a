"""What a pipeline is told and what it answers, turn by turn, and what is counted meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from memsampd.daemon.sampled_lines import SampledLine
from memsampd.daemon.sampling import Sampling
from memsampd.daemon.tracer import CaptureOrder, CaptureResult, CountedBurst
from memsampd.errors import MemsampdError
from memsampd.estimate.events import EstimatorEvent
from memsampd.exporters.snapshot import AddressTally, BurstTally
from memsampd.phases.records import Assignment, Window
from memsampd.sampler.perf.watch import Watched, WatchOrder
from memsampd.sampler.process.mapped import MemoryUse
from memsampd.sampler.records import BranchSamples


class Turn(msgspec.Struct, frozen=True):
    """What has happened since the last turn.

    Attributes:
        now_seconds: CLOCK_MONOTONIC.
        target_cpu_seconds: CPU time of the target since the attach.
        own_cpu_seconds: CPU time of memsampd's threads for this target, without the replica.
        waits_for_cpu: whether memsampd's own threads have to wait for a CPU.
        samples: branch samples, of one program: if there was an exec it is at their beginning.
        results: of the orders given.
        command: short name of the program that the target runs now.
        executable: its path.
        watched: watches that have ended.
        refused_watches: such as could not begin, and why.
        free_watches: how many more words can be watched.
        sampled_lines: lines of accesses that a PMU sampled.
        addresses: how many accesses these were chosen of, and what was lost.
        sampling: what branch samples cost.
        thread_seconds: CPU time of threads since the last turn, that in the kernel included.
        memory: what the target has, and was given since the last turn; None if that is not known,
            as where child processes are sampled, too.
        copied_bytes: what the kernel copied for it since then; None if that is not known.
    """

    now_seconds: float
    target_cpu_seconds: float
    own_cpu_seconds: float
    samples: BranchSamples
    results: Sequence[CaptureResult] = ()
    command: str = ""
    executable: str = ""
    watched: Sequence[Watched] = ()
    refused_watches: Sequence[tuple[WatchOrder, MemsampdError]] = ()
    free_watches: int = 0
    sampled_lines: Sequence[SampledLine] = ()
    addresses: AddressTally = AddressTally()
    waits_for_cpu: bool = False
    sampling: Sampling = Sampling()
    thread_seconds: Mapping[int, float] = msgspec.field(default_factory=dict)
    memory: MemoryUse | None = None
    copied_bytes: int | None = None


class Actions(msgspec.Struct, frozen=True):
    """What is to be done about it.

    Attributes:
        records: for recordings, in this order; the estimator has had them.
        windows: of the present program that have ended, with their phases; of such as were merged
            in the same turn, what they are now.
        order: a burst to take.
        watches: words to watch from now on.
        ends_seeking: a burst of code that is sought is waited for, and another is needed sooner.
        ends_watches: words that are watched now are to be watched no more.
    """

    records: tuple[EstimatorEvent, ...]
    windows: tuple[tuple[Window, Assignment], ...]
    order: CaptureOrder | None
    watches: tuple[WatchOrder, ...] = ()
    ends_seeking: bool = False
    ends_watches: bool = False


class Counts(msgspec.Struct):
    """What has been counted since the attach.

    Attributes:
        samples: branch samples.
        cpu_seconds: for which they stand.
        child_cpu_seconds: that of child processes.
        lost: those that the kernel dropped, or of programs that others replaced at once.
        throttled: throttle events.
        windows: windows.
        ends: bursts by reason of their end.
        errors: captures refused or failed, by reason.
        words: what the last one of each reason said.
        tally: what became of all bursts.
        store_drops: phases of which what was stored did not hold.
        watches: lines that were watched, with something to tell.
        addresses: what became of accesses that a PMU sampled.
    """

    samples: int = 0
    cpu_seconds: float = 0.0
    child_cpu_seconds: float = 0.0
    lost: int = 0
    throttled: int = 0
    windows: int = 0
    ends: Counter[str] = msgspec.field(default_factory=Counter)
    errors: Counter[str] = msgspec.field(default_factory=Counter)
    words: dict[str, str] = msgspec.field(default_factory=dict)
    tally: BurstTally = msgspec.field(default_factory=BurstTally)
    store_drops: int = 0
    watches: int = 0
    addresses: AddressTally = AddressTally()

    @property
    def child_share(self) -> float:
        """For this share of the CPU time child processes ran, 0..1."""
        return self.child_cpu_seconds / self.cpu_seconds if self.cpu_seconds > 0 else 0.0

    def add_samples(self, samples: BranchSamples, pid: int) -> None:
        """Count branch samples, of a process and its children, and those that are missing."""
        self.samples += len(samples)
        seconds = samples.weight * samples.each_cpu_seconds
        self.cpu_seconds += float(seconds.sum())
        self.child_cpu_seconds += float(seconds[samples.pid != pid].sum())
        self.lost += samples.lost + samples.left_out
        self.throttled += samples.throttled

    def add_burst(self, counted: CountedBurst) -> None:
        """Count a burst once, with all of its parts: it ended as the last of them did."""
        parts = [each.burst for each in counted.parts]
        self.ends[parts[-1].end.value] += 1
        accesses = sum(part.accesses for part in parts)
        self.tally = self.tally.with_burst(replace(parts[0], accesses=accesses))

    def add_error(self, reason: str, words: str) -> None:
        """Count what was refused or failed."""
        self.errors[reason] += 1
        self.words[reason] = words
