"""The settings of a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

import msgspec

from memsampd.errors import UsageError
from memsampd.sampler.perf.costs import PERIODS_SECONDS, SamplingCost
from memsampd.sampler.pmu.choice import BranchChoice, ClockChoice

AccessChoice = Literal["auto", "bursts", "watchpoints"]
_FEWEST_SAMPLES = 5  # a window


class SessionConfig(msgspec.Struct, frozen=True):
    """What a user can choose.

    Attributes:
        duration_seconds: wall time after which to detach; None: when the target ends.
        window_seconds: CPU time of a window.
        period_seconds: CPU time between branch samples; None: by what an interrupt takes.
        bins: length of branch vectors.
        schedule: name of the schedule.
        budget_share: share of the target's CPU time that bursts may cost it.
        own_cpu_share: CPU time that memsampd's processes may use, as a share of the target's; a
            second is granted in any case.
        burst_accesses: length of a long burst that nothing ends early; most are shorter.
        max_stop_seconds: how long a burst may hold the target, all its holds together; 0: nothing
            is to be stopped.
        cpu_affinity: CPUs for memsampd's processes; empty for all that it may use.
        niceness: of the analysis; None: 5. The replica chooses its own.
        follow_forks: sample the branches of child processes, too; bursts are of the process only.
        watches: measure distances longer than bursts by watchpoints.
        random_replacement: estimate curves of random replacement, too.
        line_bytes: size of a cache line.
        seed: of every random choice.
        branches: where branch samples come from: "timer", "ticks", "pmu" or "auto".
        clock: what accesses are timed by: "registers", "counters" or "auto".
        accesses: where accesses come from: "bursts", for which the target is held; "watchpoints",
            for which nothing is stopped; or "auto".
    """

    duration_seconds: float | None = None
    window_seconds: float = 0.1
    period_seconds: float | None = None
    bins: int = 64
    schedule: str = "phase-guided"
    budget_share: float = 0.01
    own_cpu_share: float = 0.05
    burst_accesses: int = 1_000_000
    max_stop_seconds: float = 0.005
    cpu_affinity: tuple[int, ...] = ()
    niceness: int | None = None
    follow_forks: bool = False
    watches: bool = True
    random_replacement: bool = True
    line_bytes: int = 64
    seed: int = 0
    branches: BranchChoice = "auto"
    clock: ClockChoice = "auto"
    accesses: AccessChoice = "auto"

    @property
    def stops_nothing(self) -> bool:
        """Whether accesses come from watchpoints; of "auto" that is not settled yet."""
        return self.accesses == "watchpoints"

    def sampling_period_seconds(self, cost: SamplingCost) -> float:
        """CPU time between branch samples that take so much."""
        if self.period_seconds is not None:
            return self.period_seconds
        return min(cost.period_seconds, self.window_seconds / _FEWEST_SAMPLES)

    def __post_init__(self) -> None:
        for option, value, is_good, remedy in (*self._numbers(), *self._choices()):
            if not is_good:
                raise UsageError(f"{option} {value} is out of range", remedy)
        if self.stops_nothing and not self.watches:
            raise UsageError(
                "--accesses watchpoints and --no-watchpoints exclude each other",
                "leave one of them out",
            )
        if self.accesses == "bursts" and self.max_stop_seconds == 0:
            raise UsageError(
                "--accesses bursts and --max-stop 0 exclude each other", "leave one of them out"
            )

    def _numbers(self) -> Iterator[tuple[str, object, bool, str]]:
        """Options, their values, whether these can be, and what could."""
        period = PERIODS_SECONDS[0] if self.period_seconds is None else self.period_seconds
        seconds, nice = self.duration_seconds, self.niceness
        yield "--duration", seconds, seconds is None or seconds > 0, "give more than 0 seconds"
        is_long = self.window_seconds >= _FEWEST_SAMPLES * period
        remedy = f"give {_FEWEST_SAMPLES} times --period ({period:g} s) at least"
        yield "--window", self.window_seconds, is_long, remedy
        yield "--period", period, 1e-4 <= period <= 1, "give 0.0001 to 1 seconds"
        is_share = 0 < self.budget_share <= 1
        yield "--budget", self.budget_share, is_share, "give more than 0, and 1 at most"
        yield "--own-cpu", self.own_cpu_share, self.own_cpu_share > 0, "give more than 0"
        yield "--max-stop", self.max_stop_seconds, self.max_stop_seconds >= 0, "give 0 or more"
        yield "--nice", nice, nice is None or 0 <= nice <= 19, "give 0 to 19"
        is_usual = 1000 <= self.burst_accesses <= 10**9
        yield "--burst", self.burst_accesses, is_usual, "give 1000 to 1000000000 accesses"

    def _choices(self) -> Iterator[tuple[str, object, bool, str]]:
        for option, value, choice in (
            ("--branches", self.branches, BranchChoice),
            ("--clock", self.clock, ClockChoice),
            ("--accesses", self.accesses, AccessChoice),
        ):
            known = get_args(choice)
            yield option, value, value in known, f"choose one of {', '.join(known)}"


class OutputConfig(msgspec.Struct, frozen=True):
    """Where a session's results go.

    Attributes:
        recording: file to write; None for none.
        overwrite: replace it if it exists.
        listen: HOST:PORT of the metrics; None for none.
        any_port: take a free port where that one is in use.
        page: serve the page and the API there, too.
        store: file of profiles; None for none.
        linger_seconds: for so long after the end metrics wait to be read once more.
    """

    recording: Path | None = None
    overwrite: bool = False
    listen: str | None = None
    any_port: bool = False
    page: bool = False
    store: Path | None = None
    linger_seconds: float = 0.0
