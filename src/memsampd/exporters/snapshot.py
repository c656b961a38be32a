"""The immutable state of a session, and of a node, that exporters show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

from memsampd.estimate.records import Estimate
from memsampd.machines.machine_file import MemoryPeak
from memsampd.phases.records import Window
from memsampd.sampler.records import Burst


class TargetInfo(msgspec.Struct, frozen=True):
    """The process observed.

    Attributes:
        pid: process id in memsampd's namespace.
        start_ticks: start time from /proc/PID/stat: with the pid it names one process for good.
        command: short name (comm).
        executable: path of the program, as far as readable.
    """

    pid: int
    start_ticks: int
    command: str
    executable: str


_RELOAD_TROUBLE = "the configuration could not be read again: the daemon's log says why"
_STORE_TROUBLE = "what is kept of programs cannot be used: the daemon's log says why"


class BurstTally(msgspec.Struct, frozen=True):
    """What became of all bursts together.

    Attributes:
        bursts: how many there were.
        plausible: during so many of them other threads could run: they show a plausible future of
            the thread, perhaps not the one that came.
        calls: system calls that they go over.
        calls_compared: at so many of these the target was compared with its replica.
        calls_equal: at so many they were equal.
        pages_predicted: pages that were supplied before they were touched.
        pages_missed: pages that were supplied when they were touched.
        cut_short: so many bursts found the thread inside a call and had it return before all was
            transferred, as a signal would: the program goes on with the rest.
        accesses: that they observed.
    """

    bursts: int = 0
    plausible: int = 0
    calls: int = 0
    calls_compared: int = 0
    calls_equal: int = 0
    pages_predicted: int = 0
    pages_missed: int = 0
    cut_short: int = 0
    accesses: int = 0

    def with_burst(self, burst: Burst) -> BurstTally:
        """The tally with another burst in it."""
        return BurstTally(
            self.bursts + 1,
            self.plausible + burst.is_plausible,
            self.calls + burst.calls,
            self.calls_compared + burst.calls_compared,
            self.calls_equal + burst.calls_equal,
            self.pages_predicted + burst.pages_predicted,
            self.pages_missed + burst.pages_missed,
            self.cut_short + burst.cut_short,
            self.accesses + burst.accesses,
        )


class AddressTally(msgspec.Struct, frozen=True):
    """What became of all accesses that a PMU sampled.

    Attributes:
        samples: those with a valid address.
        invalid: samples that told none: other instructions mostly.
        lost: samples that the kernel dropped, or that could not be read.
        throttled: throttle events; each hides an unknown number.
    """

    samples: int = 0
    invalid: int = 0
    lost: int = 0
    throttled: int = 0

    def __add__(self, other: AddressTally) -> AddressTally:
        """That of both."""
        return AddressTally(
            self.samples + other.samples,
            self.invalid + other.invalid,
            self.lost + other.lost,
            self.throttled + other.throttled,
        )


class Overhead(msgspec.Struct, frozen=True):
    """What memsampd cost so far, in seconds, and what that is a share of.

    Attributes:
        target_cpu_seconds: CPU time of the target since attach.
        stop_seconds: wall time for which one of its threads was held.
        longest_stop_seconds: the longest of these times.
        hit_seconds: CPU time that breakpoints took from it, hits, slower copies and switches of
            watched threads, and samples in quick succession.
        sampling_seconds: estimate of the CPU time that branch samples took from it: interrupts, and
            more at switches between threads.
        budget_share: the share of the target's CPU time that bursts may cost.
        spent_share: the share that they cost: holds and hits.
        own_cpu_seconds: CPU time of memsampd's processes (tracing and the replica included).
        replica_cpu_seconds: the replica's part of it.
        own_cpu_share: the share of the target's CPU time that they may use.
        own_cpu_waited_seconds: time for which bursts have waited because they had used it.
        waits_for_own_cpu: bursts wait for that at present.
        sampled_share: for this part of the time branch samples are taken at present.
        sampling_why: why not all the time, or what that takes where it has to be; else empty.
        taken_cpu_seconds: estimate of the CPU time of memsampd's processes that was taken from the
            target: while no CPU is idle, so much of it as the target has of the CPUs.
        own_cpu_granted_seconds: CPU time that memsampd's processes may use in any case, however
            little the target uses.
    """

    target_cpu_seconds: float
    stop_seconds: float
    longest_stop_seconds: float
    hit_seconds: float
    sampling_seconds: float
    budget_share: float
    spent_share: float
    own_cpu_seconds: float
    replica_cpu_seconds: float
    own_cpu_share: float
    own_cpu_waited_seconds: float
    waits_for_own_cpu: bool
    sampled_share: float = 1.0
    sampling_why: str = ""
    taken_cpu_seconds: float = 0.0
    own_cpu_granted_seconds: float = 0.0


class Snapshot(msgspec.Struct, frozen=True):
    """Everything about one session at one moment.

    Attributes:
        target: the process.
        alive: False once it has ended, or is not observed any more.
        time_seconds: CLOCK_MONOTONIC time of the snapshot.
        backend: names of branch source, access source, clock, of what measures long distances, and
            of what else tells lines to be watched.
        window: the last window; None before the first.
        phase: its phase.
        predicted_phase: the phase expected next.
        prediction_accuracy: share of predictions that came true; None before the first.
        estimate: all that is known of its accesses and misses.
        cache_sizes_bytes: this machine's data cache sizes by name ("L1d", "L2", "L3").
        samples: branch samples so far.
        lost: branch samples lost.
        throttled: throttle events.
        burst_ends: number of bursts by reason of their end.
        errors: number of refused or failed captures by reason.
        overhead: what it all cost.
        tally: what became of all bursts together.
        trouble: why no burst is taken at present, with the remedy; empty where nothing lasting is
            in the way.
        refusals: what the last refusal of each reason said, with its remedy.
        idle_seconds: for how long the target has used no CPU time.
        memory_peak: what memory gives at most; None if it was not measured.
        store_drops: phases of which what was stored did not hold any more, so far.
        watches: lines that were watched, so far.
        addresses: what became of accesses that a PMU sampled; all 0 where none does.
        is_let_go: it is not observed any more though it has not ended.
        child_share: for this share of the CPU time in its windows child processes ran, 0..1.
    """

    target: TargetInfo
    alive: bool
    time_seconds: float
    backend: Mapping[str, str]
    window: Window | None
    phase: int | None
    predicted_phase: int | None
    prediction_accuracy: float | None
    estimate: Estimate
    cache_sizes_bytes: Mapping[str, int]
    samples: int
    lost: int
    throttled: int
    burst_ends: Mapping[str, int]
    errors: Mapping[str, int]
    overhead: Overhead
    tally: BurstTally = BurstTally()
    trouble: str = ""
    refusals: Mapping[str, str] = msgspec.field(default_factory=dict)
    idle_seconds: float = 0.0
    memory_peak: MemoryPeak | None = None
    store_drops: int = 0
    watches: int = 0
    addresses: AddressTally = AddressTally()
    is_let_go: bool = False
    child_share: float = 0.0

    @property
    def lives(self) -> bool:
        """Whether the process has not ended, observed or not."""
        return self.alive or self.is_let_go

    def refused(self) -> list[str]:
        """Say what was refused, how often, why, and what can be done about it; a line a reason."""
        return [
            f"{count} burst{'' if count == 1 else 's'} refused ({reason}): "
            f"{self.refusals.get(reason, reason)}"
            for reason, count in sorted(self.errors.items())
        ]


TargetState = Literal["profiled", "sampled", "idle", "waiting", "failed"]
"""How a target of a node fares.

"profiled": bursts are taken of it. "sampled": its phases are found, the budget has no bursts for it
at present. "idle": it uses no CPU time. "waiting": it is to be observed, and has not been attached
to yet. "failed": it could not be attached to; that is tried again.
"""


class NodeTarget(msgspec.Struct, frozen=True):
    """A process that a node's daemon observes, or is to observe.

    Attributes:
        target: the process.
        state: how it fares.
        rule: name of the rule that chose it; "user" if somebody asked for it by its number.
        reason: why it fares so, where that needs words; else empty.
        remedy: what can be done about it; empty if there is nothing.
        own_cpu_seconds: CPU time that memsampd's processes have used for it.
        stop_seconds: wall time for which one of its threads was held.
        burst_share: share of the node's budget of bursts that it has at present, 0 to 1.
    """

    target: TargetInfo
    state: TargetState
    rule: str
    reason: str = ""
    remedy: str = ""
    own_cpu_seconds: float = 0.0
    stop_seconds: float = 0.0
    burst_share: float = 0.0


class NodeStatus(msgspec.Struct, frozen=True):
    """Everything about a node's daemon at one moment.

    Attributes:
        version: of memsampd.
        pid: of the daemon.
        started_unix_seconds: when it was started.
        time_seconds: CLOCK_MONOTONIC time of the status.
        targets: all that is observed or to be observed, by process id.
        left_out: processes that rules match, but for which there was no room.
        own_cpu_seconds: CPU time of the daemon and its child processes so far.
        own_cpu_share: the same over the last minute, as a share of one core.
        own_cpu_budget_share: the share that it is to keep to.
        stop_seconds: wall time for which threads of targets were held so far, all together.
        stop_share: the same over the last minute, as a share of it.
        stop_budget_share: the share that it is to keep to.
        rss_bytes: resident memory of the daemon, without its child processes.
        open_descriptors: open files of the daemon.
        threads: of the daemon.
        loop_seconds: the longest pass of its loop in the last minute.
        ended_targets: targets that have ended, or were let go, so far.
        reload_trouble: why the configuration could not be read again; empty if it could.
        store_trouble: why nothing is kept of programs, nor known again; empty if all is well.
    """

    version: str
    pid: int
    started_unix_seconds: float
    time_seconds: float
    targets: tuple[NodeTarget, ...]
    left_out: int
    own_cpu_seconds: float
    own_cpu_share: float
    own_cpu_budget_share: float
    stop_seconds: float
    stop_share: float
    stop_budget_share: float
    rss_bytes: int
    open_descriptors: int
    threads: int
    loop_seconds: float
    ended_targets: int
    reload_trouble: str = ""
    store_trouble: str = ""

    def by_state(self) -> dict[str, int]:
        """How many targets there are in each state, those without any included."""
        counts = dict.fromkeys(get_args(TargetState), 0)
        for each in self.targets:
            counts[each.state] += 1
        return counts

    def without_causes(self) -> NodeStatus:
        """The status for everybody: of mistakes in files that not all may read, no words."""
        return msgspec.structs.replace(
            self,
            reload_trouble=_RELOAD_TROUBLE if self.reload_trouble else "",
            store_trouble=_STORE_TROUBLE if self.store_trouble else "",
        )
