"""What bursts may cost the target, and what the next one is expected to cost."""

from __future__ import annotations

import msgspec


class TokenBucket:
    """CPU seconds that may be spent: a share of what the target uses, saved up to a limit.

    At any time, spent <= allowance + share * elapsed + the overrun of one burst, since a burst is
    started only if its *expected* cost fits and a debt must be worked off first.

    Args:
        share: CPU seconds earned a CPU second of the target; ``inf`` lifts the limit.
        allowance_seconds: what is there at the start, so that a session does not wait for minutes
            before its first curve. It is spent on top of the share (and shows as such in the
            overhead that is reported).
    """

    def __init__(self, share: float, allowance_seconds: float) -> None:
        if share < 0 or allowance_seconds < 0:
            raise ValueError("share and allowance are not negative")
        self._share = share
        self._capacity = allowance_seconds
        self._balance = allowance_seconds

    def elapse(self, cpu_seconds: float, most_needed_seconds: float) -> None:
        """Earn.

        Args:
            cpu_seconds: CPU time that the target used.
            most_needed_seconds: what must fit in, however small the allowance was; savings
                beyond it are lost.
        """
        if cpu_seconds < 0:
            raise ValueError("CPU time does not run backwards")
        if self._share == float("inf"):
            return
        limit = max(self._capacity, most_needed_seconds, self._balance)
        self._balance = min(self._balance + self._share * cpu_seconds, limit)

    def spend(self, cost_seconds: float) -> None:
        """Pay for a burst, even beyond the balance."""
        self._balance -= cost_seconds

    def affords(self, cpu_seconds: float) -> float:
        """What may be spent until the target has used so much more CPU time, seconds."""
        return max(self.balance_seconds + self._share * cpu_seconds, 0.0)

    @property
    def balance_seconds(self) -> float:
        """What may be spent now; negative while a debt is worked off."""
        return float("inf") if self._share == float("inf") else self._balance


class BurstShape(msgspec.Struct, frozen=True):
    """How long bursts may be, and what they cost before any was seen.

    What varies is seen by many bursts of the usual length; what large caches do by long ones.
    The defaults are what holds of programs that find most pages predicted were measured to cost:
    1 to 2.5 ms for 200,000 accesses.

    Attributes:
        min_accesses: a shorter burst is not worth its hold.
        usual_accesses: what most bursts ask for.
        max_accesses: what a long one asks for.
        stop_seconds: cost of a burst of no accesses.
        seconds_per_access: cost of each access.
    """

    min_accesses: int = 100_000
    usual_accesses: int = 200_000
    max_accesses: int = 1_000_000
    stop_seconds: float = 0.0005
    seconds_per_access: float = 5e-9

    def __post_init__(self) -> None:
        if not 1 <= self.min_accesses <= self.usual_accesses <= self.max_accesses:
            raise ValueError("1 <= min_accesses <= usual_accesses <= max_accesses must hold")
        if self.stop_seconds < 0 or self.seconds_per_access < 0:
            raise ValueError("costs are not negative")


_KEEP = 15 / 16  # of what earlier bursts tell, at each new one


class CostModel:
    """Running estimate of cost = stop + accesses * per access, by aged least squares.

    The initial estimate counts as two bursts, an empty one and a full one, and does not age, so
    that bursts of all the same length leave the line determined.

    Args:
        shape: lengths and the initial estimate.
    """

    def __init__(self, shape: BurstShape) -> None:
        self._shape = shape
        # Sums of weight, x, x*x, y, x*y; x in units of a full burst.
        self._sums = [0.0] * 5
        self._fit()

    def learn(self, accesses: int, cost_seconds: float) -> None:
        """Take in the cost of one burst."""
        x = accesses / self._shape.max_accesses
        new = (1.0, x, x * x, cost_seconds, x * cost_seconds)
        self._sums = [old * _KEEP + one for old, one in zip(self._sums, new, strict=True)]
        self._fit()

    def predict(self, accesses: int) -> float:
        """Expected cost of a burst of so many accesses, seconds."""
        return self._stop + accesses * self._per_access

    def affordable(self, seconds: float) -> int:
        """The longest burst that fits into so many seconds; 0 if the shortest does not."""
        shape = self._shape
        if self.predict(shape.max_accesses) <= seconds:
            return shape.max_accesses
        if self.predict(shape.min_accesses) > seconds:
            return 0
        fitting = int((seconds - self._stop) / self._per_access)
        return min(max(fitting, shape.min_accesses), shape.max_accesses)

    def _fit(self) -> None:
        shape = self._shape
        full = shape.stop_seconds + shape.max_accesses * shape.seconds_per_access
        prior = (2.0, 1.0, 1.0, shape.stop_seconds + full, full)
        w, x, xx, y, xy = (a + b for a, b in zip(self._sums, prior, strict=True))
        slope = (w * xy - x * y) / (w * xx - x * x)  # never singular, thanks to the prior
        if slope < 0:
            slope, stop = 0.0, y / w
        else:
            stop = (y - slope * x) / w
        if stop < 0:
            slope, stop = xy / xx, 0.0
        self._stop = stop
        self._per_access = slope / shape.max_accesses
