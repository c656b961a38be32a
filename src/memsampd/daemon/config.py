"""The settings of a session."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from memsampd.errors import UsageError


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """What a user can choose.

    Attributes:
        duration_seconds: wall time after which to detach; None: when the target ends.
        window_seconds: CPU time of a window.
        period_seconds: CPU time between branch samples.
        bins: length of branch vectors.
        schedule: name of the schedule.
        budget_share: share of the target's CPU time that bursts may cost it.
        own_cpu_share: CPU time that memsampd and its copies of the target may use, as a share of
            the target's, on top of what the first curves take.
        burst_accesses: length of a burst that nothing ends early; the first ones of a phase are
            shorter.
        rate_accesses: how far a burst is followed, counting only from its length on, when its
            native twin is timed; 0: no further.
        moments: bursts a stop at most: a copy of the thread runs ahead and is observed on its way.
        gap_seconds: time that it runs from one to the next, on average; None: so that the next
            stop is due when it has shown all, within limits.
        burst_seconds: wall time after which a burst ends early.
        max_stop_seconds: the longest stop of the target that a burst may be expected to cost.
        cpu_affinity: CPUs for memsampd and the shadows; empty for all that it may use.
        niceness: of the analysis and of shadows; None for 10 and 5.
        follow_forks: sample the branches of child processes, too.
        line_bytes: size of a cache line.
        seed: of every random choice.
    """

    duration_seconds: float | None = None
    window_seconds: float = 0.1
    period_seconds: float = 0.002
    bins: int = 64
    schedule: str = "phase-guided"
    budget_share: float = 0.01
    own_cpu_share: float = 0.25
    burst_accesses: int = 1_000_000
    rate_accesses: int = 32_000_000
    moments: int = 64
    gap_seconds: float | None = None
    burst_seconds: float = 6.0
    max_stop_seconds: float = 0.02
    cpu_affinity: tuple[int, ...] = ()
    niceness: int | None = None
    follow_forks: bool = False
    line_bytes: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        checks = (
            (
                "--duration",
                self.duration_seconds,
                self.duration_seconds is None or self.duration_seconds > 0,
            ),
            ("--window", self.window_seconds, self.window_seconds >= 5 * self.period_seconds),
            ("--period", self.period_seconds, 1e-4 <= self.period_seconds <= 1),
            ("--budget", self.budget_share, 0 < self.budget_share <= 1),
            ("--own-cpu", self.own_cpu_share, self.own_cpu_share > 0),
            ("--max-stop", self.max_stop_seconds, self.max_stop_seconds > 0),
            ("--nice", self.niceness, self.niceness is None or 0 <= self.niceness <= 19),
            ("--moments", self.moments, 1 <= self.moments <= 1000),
            (
                "--gap",
                self.gap_seconds,
                self.gap_seconds is None or 0 < self.gap_seconds <= 60,
            ),
            ("--burst", self.burst_accesses, 1000 <= self.burst_accesses <= 10**9),
        )
        for option, value, is_good in checks:
            if not is_good:
                raise UsageError(f"{option} {value} is out of range", "see memsampd attach --help")


@dataclass(frozen=True, slots=True)
class OutputConfig:
    """Where a session's results go.

    Attributes:
        recording: file to write; None for none.
        overwrite: replace it if it exists.
        listen: HOST:PORT of the metrics; None for none.
    """

    recording: Path | None = None
    overwrite: bool = False
    listen: str | None = None
