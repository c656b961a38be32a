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
    of the phase itself. A window counts by the *pace* at its burst, the accesses a second there:
    bursts come at random moments of time, curves speak per access.
    """

    _settled: list[tuple[float, MissRatioCurve]] = field(default_factory=list)
    _last: MissRatioCurve | None = None
    _last_pace: float = 1.0
    _own: float = 0.0  # windows that the last burst has got for good
    _since: float = 0.0  # windows since the last burst
    _paces: list[float] = field(default_factory=lambda: [0.0, 0.0])  # known ones: sum, number

    def add_window(self) -> None:
        """Count a window."""
        self._since += 1

    def add_burst(self, curve: MissRatioCurve, pace: float | None = None) -> None:
        """Take in a burst of the latest window.

        Args:
            curve: what it showed.
            pace: accesses a second there; None, where it was not timed, for the mean so far.
        """
        if self._last is None:
            self._own = max(self._since, 1.0)
        else:
            self._settle((self._own + self._since / 2) * self._last_pace, self._last)
            self._own = self._since / 2
        self._since = 0.0
        self._last, self._last_pace = curve, self._pace(pace)

    def merge(self, other: RunningCurve) -> None:
        """Take over what was learnt of a phase that turned out to be this one."""
        for weight, curve in other._parts():
            self._settle(weight, curve)
        if other._last is None:
            self._since += other._since
        self._paces = [sum(both) for both in zip(self._paces, other._paces, strict=True)]

    @property
    def curve(self) -> MissRatioCurve | None:
        """The mean curve; None before the first burst."""
        return combine(self._parts())

    def _pace(self, pace: float | None) -> float:
        if pace is None:
            total, number = self._paces
            return total / number if number else 1.0
        if not self._paces[1]:  # what came before is now known to be as fast as this
            self._settled = [(weight * pace, curve) for weight, curve in self._settled]
        self._paces = [self._paces[0] + pace, self._paces[1] + 1]
        return pace

    def _parts(self) -> list[tuple[float, MissRatioCurve]]:
        if self._last is None:
            return self._settled
        windows = max(self._own + self._since, 1e-9)
        return [*self._settled, (windows * self._last_pace, self._last)]

    def _settle(self, weight: float, curve: MissRatioCurve) -> None:
        parts = [*self._settled, (max(weight, 1e-9), curve)]
        mean = combine(parts)
        assert mean is not None  # there is a curve of positive weight
        self._settled = [(sum(weight for weight, _ in parts), mean)]
