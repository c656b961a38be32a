"""What a burst costs, be it taken or tried in vain."""

from __future__ import annotations

import msgspec


class BurstCost(msgspec.Struct, frozen=True):
    """What one burst cost, in seconds of the resource named.

    Attributes:
        stop_seconds: wall time for which a thread of the target was held.
        stops: how often it was held.
        longest_stop_seconds: the longest of these times.
        hit_seconds: CPU time that breakpoints took from the target, hits, slower copies and
            switches between watched threads, and samples in quick succession.
        replica_cpu_seconds: CPU time of the replica since the burst before, its start included,
            and of other children of memsampd's.
        tracer_cpu_seconds: CPU time of memsampd's tracing thread.
    """

    stop_seconds: float = 0.0
    stops: int = 0
    longest_stop_seconds: float = 0.0
    hit_seconds: float = 0.0
    replica_cpu_seconds: float = 0.0
    tracer_cpu_seconds: float = 0.0

    def __add__(self, other: BurstCost) -> BurstCost:
        """The cost of both."""
        return BurstCost(
            self.stop_seconds + other.stop_seconds,
            self.stops + other.stops,
            max(self.longest_stop_seconds, other.longest_stop_seconds),
            self.hit_seconds + other.hit_seconds,
            self.replica_cpu_seconds + other.replica_cpu_seconds,
            self.tracer_cpu_seconds + other.tracer_cpu_seconds,
        )

    @property
    def own_cpu_seconds(self) -> float:
        """CPU time of memsampd's that it took."""
        return self.tracer_cpu_seconds + self.replica_cpu_seconds

    @property
    def target_seconds(self) -> float:
        """What it took from the target, and what its budget is charged with."""
        return self.stop_seconds + self.hit_seconds
