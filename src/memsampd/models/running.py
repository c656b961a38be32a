"""The mean curve of a phase while its windows and bursts come."""

from __future__ import annotations

from dataclasses import dataclass, field

from memsampd.models.combine import combine
from memsampd.models.records import MissRatioCurve


@dataclass(slots=True)
class RunningCurve:
    """Each window counts with the curve of the burst nearest to it, in constant memory.

    Windows after a burst are its own until the next one comes; then half of them go over to that.
    This is what :func:`memsampd.models.nearest.nearest` does when all is known, counted in windows
    of the phase itself.
    """

    _settled: list[tuple[float, MissRatioCurve]] = field(default_factory=list)
    _last: MissRatioCurve | None = None
    _bursts: int = 0  # that it is the mean of: those of one window
    _own: float = 0.0  # windows that the last burst has got for good
    _since: float = 0.0  # windows since the last burst, its own included

    def add_window(self) -> None:
        """Count a window."""
        self._since += 1

    def add_burst(self, curve: MissRatioCurve) -> None:
        """Take in the curve of a burst in the latest window."""
        if self._last is not None and not self._since:  # another of the same window
            self._last = combine(((self._bursts, self._last), (1.0, curve)))
            self._bursts += 1
            return
        self._bursts = 1
        if self._last is None:
            self._own, self._since = max(self._since, 1.0), 0.0
        else:
            before = self._own + self._since / 2
            self._settle(before, self._last)
            self._own, self._since = self._since / 2, 0.0
        self._last = curve

    def merge(self, other: RunningCurve) -> None:
        """Take over what was learnt of a phase that turned out to be this one."""
        for weight, curve in other._parts():
            self._settle(weight, curve)
        if other._last is None:
            self._since += other._since

    @property
    def curve(self) -> MissRatioCurve | None:
        """The mean curve; None before the first burst."""
        return combine(self._parts())

    def _parts(self) -> list[tuple[float, MissRatioCurve]]:
        if self._last is None:
            return self._settled
        return [*self._settled, (max(self._own + self._since, 1e-9), self._last)]

    def _settle(self, weight: float, curve: MissRatioCurve) -> None:
        parts = [*self._settled, (max(weight, 1e-9), curve)]
        mean = combine(parts)
        assert mean is not None  # there is a curve of positive weight
        self._settled = [(sum(weight for weight, _ in parts), mean)]
