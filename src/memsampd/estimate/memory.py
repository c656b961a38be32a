"""The bursts that estimates rest on: the latest, and of older ones those unlike each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from memsampd.estimate.burst_code import BurstCode
from memsampd.estimate.evidence import likely_spacing
from memsampd.estimate.timings import ALIKE, Doubts, Timings
from memsampd.estimate.window_rates import RatesByCode
from memsampd.sampler.records import Spacing

# What the rates of two stops in the same code are taken to differ by.
_USUAL_VARIATION = 0.2
# Bursts without an access say nothing of the rates of others.
_MEMORYLESS_PRECISION = 1e-12

_Found = TypeVar("_Found")


def _until_changed(find: Callable[[BurstMemory], _Found]) -> Callable[[BurstMemory], _Found]:
    """Keep what was found until bursts or their curves change; nobody may write into it."""

    @wraps(find)
    def kept(self: BurstMemory) -> _Found:
        if find not in self._found:
            self._found[find] = find(self)
        found: _Found = self._found[find]
        return found

    return kept


class BurstMemory:
    """Remembers at most so many bursts, in the order of their windows or nearly so.

    If there are more, the two of the older half that ran the most similar code become one that
    stands for both: the mean of their branch vectors, rates and curves.

    Args:
        bins: length of branch vectors.
        values: figures of a curve.
        capacity: bursts that are remembered.
        compared: figures that show whether two bursts missed alike; None: those of their curves do.
        window_rates: how fast windows ran their code.

    Attributes:
        count: bursts, or such as stand for several: m.
    """

    def __init__(
        self,
        bins: int,
        values: int,
        capacity: int = 128,
        compared: int | None = None,
        window_rates: RatesByCode | None = None,
    ) -> None:
        if capacity < 4:
            raise ValueError("a memory of at least 4 bursts")
        self.count = 0
        self._capacity = capacity
        self._rows: list[NDArray[Any]] = []  # all that follow
        self._window = self._column(np.int64)
        self._phase = self._column(np.int64)
        self._bursts = self._column()
        self._log_rate = self._column()
        self._precision = self._column()
        self._error = self._column()
        self._is_timed = self._column(np.bool_)
        self._is_memoryless = self._column(np.bool_)
        self._timed_code = self._column(np.int64)
        self._is_stored = self._column(np.bool_)
        self._sight_lines = self._column()
        self._spacing = self._column(np.float64, 2)
        self._log_model = self._column()
        self._log_highest = self._column()
        self._curves = self._column(np.float64, values)
        self._compared = self._column(np.float64, values if compared is None else compared)
        self._ran = BurstCode(bins, capacity)
        self._window_rates = window_rates or RatesByCode(capacity)
        self._found: dict[Callable[[BurstMemory], Any], Any] = {}

    def _column(self, dtype: type[np.generic] = np.float64, *shape: int) -> NDArray[Any]:
        """A value of each burst."""
        values = np.zeros((self._capacity, *shape), dtype)
        self._rows.append(values)
        return values

    # -- what is remembered --------------------------------------------------------------------

    @property
    def window(self) -> NDArray[np.int64]:
        """Indices of their windows, shape (m,)."""
        return self._window[: self.count]

    @property
    def phase(self) -> NDArray[np.int64]:
        """Their phases, shape (m,)."""
        return self._phase[: self.count]

    @property
    def bursts(self) -> NDArray[np.float64]:
        """How many bursts each stands for, shape (m,)."""
        return self._bursts[: self.count]

    @property
    def code(self) -> NDArray[np.float64]:
        """Shares of their instructions: :attr:`BurstCode.shares`."""
        return self._ran.shares

    @property
    def seen_code(self) -> NDArray[np.bool_]:
        """Which bins any burst ran code of, shape (bins,)."""
        return self._ran.seen

    def compact(self, vectors: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
        """Return branch vectors with the columns of :attr:`code`: :meth:`BurstCode.compact`."""
        return self._ran.compact(vectors)

    @property
    def curves(self) -> NDArray[np.float64]:
        """Figures of their curves, shape (m, values)."""
        return self._curves[: self.count]

    @property
    def compared(self) -> NDArray[np.float64]:
        """Figures that show whether two missed alike, shape (m, compared).

        Of a session's bursts these are an LRU cache's at ``COMPARED_SIZES_BYTES``: miss ratios,
        then their bounds.
        """
        return self._compared[: self.count]

    @property
    def is_memoryless(self) -> NDArray[np.bool_]:
        """Whose code makes no access: their rates are 0, shape (m,)."""
        return self._is_memoryless[: self.count]

    @property
    def is_stored(self) -> NDArray[np.bool_]:
        """Which were taken before the attach, shape (m,)."""
        return self._is_stored[: self.count]

    @property
    def sight_lines(self) -> NDArray[np.float64]:
        """Up to which stack distance they saw some, shape (m,)."""
        return self._sight_lines[: self.count]

    @property
    @_until_changed
    def timed_code(self) -> NDArray[np.int64]:
        """Ids of their code in the rates of windows, shape (m,).

        -1 where it has none, or where timings of it are in doubt, of bursts and of windows.
        """
        return np.where(self.doubts().in_doubt, -1, self._timed_code[: self.count])

    @property
    def rates(self) -> NDArray[np.float64]:
        """Their own rates, accesses per CPU second, shape (m,)."""
        return np.where(self.is_memoryless, 0.0, np.exp(self._log_rate[: self.count]))

    @property
    def errors(self) -> NDArray[np.float64]:
        """Relative errors that these may have, shape (m,)."""
        return self._error[: self.count]

    @property
    @_until_changed
    def spacing(self) -> NDArray[np.float64]:
        """Octaves and error of how far apart data lay about them, or NaN, shape (m, 2).

        Where samples do not tell it, :func:`likely_spacing`.
        """
        return likely_spacing(self._spacing[: self.count], self.compared, self._ran.alike)

    # -- learning ------------------------------------------------------------------------------

    def add(
        self,
        window: int,
        phase: int,
        code: NDArray[Any],
        curve: NDArray[np.float64],
        rate: float,
        error: float,
        modelled: float,
        is_timed: bool,
        timed_code: int = -1,
        is_stored: bool = False,
        sight_lines: float = 0.0,
        spacing: Spacing | None = None,
        highest: float | None = None,
        compared: NDArray[np.float64] | None = None,
        bursts: float = 1.0,
    ) -> tuple[int, tuple[int, int] | None]:
        """Remember a burst.

        Args:
            window: index of its window.
            phase: phase of that.
            code: its branch vector, hits, shape (bins,); of another length if it is not known.
            curve: figures of its curve, shape (values,).
            rate: accesses per CPU second; 0 if its code makes none.
            error: relative error that this may have.
            modelled: the rate by the model.
            is_timed: it was measured in the target.
            timed_code: id of its code in the rates of windows, or -1.
            is_stored: it was taken before the attach.
            sight_lines: up to which stack distance it saw some.
            spacing: how far apart data lay about its moment.
            highest: the rate by the model if nothing misses that may have hit; None: no other.
            compared: figures that show whether two bursts missed alike, shape (compared,); None:
                those of its curve.
            bursts: it counts as so much of one: less if it is short.

        Returns:
            Its row, and rows (gone, into) if two others were made one to make room for it.
        """
        joined = self._make_room() if self.count == self._capacity else None
        row = self.count if joined is None else joined[0]
        self.count = max(self.count, row + 1)
        self._window[row], self._phase[row], self._bursts[row] = window, phase, bursts
        self._is_memoryless[row] = rate == 0
        self._log_rate[row] = np.log(rate) if rate else 0.0
        precision = 1 / (_USUAL_VARIATION**2 + error**2)
        self._precision[row] = precision if rate else _MEMORYLESS_PRECISION
        self._error[row], self._is_timed[row] = error, is_timed
        self._log_model[row], self._timed_code[row] = np.log(modelled), timed_code
        self._log_highest[row] = np.log(modelled if highest is None else highest)
        self._is_stored[row], self._sight_lines[row] = is_stored, sight_lines
        self._spacing[row] = np.nan if spacing is None else (spacing.octaves, spacing.error)
        self._curves[row] = curve
        self._compared[row] = curve if compared is None else compared
        self._ran.put(row, code)
        self._found.clear()
        return row, joined

    def set_curve(
        self, row: int, curve: NDArray[np.float64], compared: NDArray[np.float64] | None = None
    ) -> None:
        """Replace what is known of a burst's curve."""
        self._curves[row] = curve
        self._compared[row] = curve if compared is None else compared
        self._found.clear()

    def merge_phases(self, gone: int, into: int) -> None:
        """Call a phase by another's id."""
        self._phase[self._phase == gone] = into
        self._found.clear()

    def ran_like(self, code: NDArray[Any]) -> NDArray[np.bool_]:
        """Which ran the same code, as far as it is known, shape (m,).

        Args:
            code: a branch vector, hits, shape (bins,); of another length if it is not known.
        """
        alike, is_known = self._ran.likeness([code])
        return np.asarray((alike[0] >= ALIKE) | ~(is_known & self.has_code()))

    def likeness(
        self, vectors: Sequence[NDArray[Any]], phases: Sequence[int]
    ) -> NDArray[np.float64]:
        """Bhattacharyya's coefficient of code with that of the bursts, 0..1, shape (n, m).

        Where one of the two is not known, 1 in the same phase and else 0.

        Args:
            vectors: branch vectors, hits, n of shape (bins,); of another length if not known.
            phases: in which it ran.
        """
        alike, is_known = self._ran.likeness(vectors)
        return self._or_phase(alike, is_known, np.array(phases))

    @_until_changed
    def likenesses(self) -> NDArray[np.float64]:
        """Return the same of the bursts with each other, shape (m, m)."""
        return self._or_phase(self._ran.alike, self.has_code(), self.phase)

    @_until_changed
    def has_code(self) -> NDArray[np.bool_]:
        """Of which of them it is known what code they ran, shape (m,)."""
        return np.asarray(self.code.any(axis=1))

    def _or_phase(
        self, alike: NDArray[np.float64], is_known: NDArray[np.bool_], phase: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        both_known = np.logical_and.outer(is_known, self.has_code())
        return np.where(both_known, alike, np.equal.outer(phase, self.phase))

    def drop_stored(self, phase: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Forget what was taken of a phase before the attach.

        Returns:
            Rows that are kept, in their new order, and rows that were dropped.
        """
        gone = self.is_stored & (self.phase == phase)
        kept, dropped = np.flatnonzero(~gone), np.flatnonzero(gone)
        self.count = len(kept)
        for values in self._rows:
            values[: self.count] = values[kept]
        self._ran.keep(kept)
        self._found.clear()
        return kept, dropped

    def _make_room(self) -> tuple[int, int]:
        """Make two bursts of the older half one; returns the rows (gone, into)."""
        older = np.argsort(self._window, kind="stable")[: max(self.count // 2, 2)]
        likeness = self._ran.alike[np.ix_(older, older)]
        likeness -= self._phase[older][:, None] != self._phase[older][None, :]
        memoryless = self._is_memoryless[older]
        likeness -= 2.0 * (memoryless[:, None] != memoryless[None, :])
        likeness[np.tril_indices(len(older))] = -4
        first, second = np.unravel_index(int(np.argmax(likeness)), likeness.shape)
        gone, into = int(older[first]), int(older[second])
        share = float(self._bursts[gone] / (self._bursts[gone] + self._bursts[into]))
        for rows in (self._curves, self._compared):
            rows[into] = share * rows[gone] + (1 - share) * rows[into]
        window = share * self._window[gone] + (1 - share) * self._window[into]
        self._window[into] = round(float(window))
        part = self._precision[gone] / (self._precision[gone] + self._precision[into])
        if self._timed_code[gone] != self._timed_code[into]:
            self._timed_code[into] = -1
        for values in (self._log_rate, self._error, self._log_model, self._log_highest):
            values[into] = part * values[gone] + (1 - part) * values[into]
        self._precision[into] += self._precision[gone]
        self._is_timed[into] |= self._is_timed[gone]
        self._is_memoryless[into] &= self._is_memoryless[gone]
        self._is_stored[into] &= self._is_stored[gone]
        self._sight_lines[into] = min(self._sight_lines[gone], self._sight_lines[into])
        self._spacing[into] = share * self._spacing[gone] + (1 - share) * self._spacing[into]
        self._bursts[into] += self._bursts[gone]
        self._ran.join(gone, into, share)
        self._found.clear()
        return gone, into

    def scatter(self, phase: int, usual: NDArray[np.float64]) -> NDArray[np.float64]:
        """Variance of the curves of single bursts about what changes slowly.

        Half the mean squared difference of a burst of the phase to the one before it, weighted by
        how like their code was: windows are shared out by code, so what unlike code differs by is
        no scatter. Beside n pairs, 1 / (n + 1) of one that differs by what is usual counts.

        Args:
            phase: its id.
            usual: variance to be expected before anything was seen, shape (values,).
        """
        kept = self._scatters()
        if phase not in kept:
            kept[phase] = self._scatter_of(phase)
        pairs, told = kept[phase]
        doubt = 1 / (pairs + 1)
        return np.asarray((told + doubt * usual) / (pairs + doubt))

    @_until_changed
    def _scatters(self) -> dict[int, tuple[float, NDArray[np.float64]]]:
        """What was worked out of phases."""
        return {}

    def _scatter_of(self, phase: int) -> tuple[float, NDArray[np.float64]]:
        """How many pairs of bursts of a phase are of like code, and the sum of their scatter."""
        rows = np.flatnonzero((self.phase == phase) & ~self.is_memoryless)
        rows = rows[np.argsort(self.window[rows], kind="stable")]
        single = 1 / self.bursts[rows]  # a mean of n bursts scatters by 1 / n of one's variance
        squares = np.diff(self.curves[rows], axis=0) ** 2 / (single[1:] + single[:-1])[:, None]
        like = self.likenesses()[rows[1:], rows[:-1]]
        return float(like.sum()), like @ squares

    # -- rates ---------------------------------------------------------------------------------

    def rates_changed(self) -> None:
        """Look at the rates of windows again."""
        self._found.clear()

    @_until_changed
    def _timings(self) -> Timings:
        m, steady = self.count, self._window_rates.steady
        codes, octaves = self._timed_code[:m].tolist(), self.spacing[:, 0].tolist()
        return Timings(
            # One that stands for many tells of old times: it corrects no more than one burst does.
            bursts=np.minimum(self.bursts, 1.0),
            is_timed=self._is_timed[:m],
            is_stored=self.is_stored,
            is_memoryless=self.is_memoryless,
            rate=self._log_rate[:m],
            model=self._log_model[:m],
            highest=self._log_highest[:m],
            steady=np.array(list(map(steady, codes, octaves))),
            alike=self._ran.alike,
            compared=self.compared,
        )

    @_until_changed
    def doubts(self) -> Doubts:
        """Return which timings are believed."""
        return self._timings().doubts()

    @_until_changed
    def expected_rates(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the rates of all bursts: :meth:`Timings.expected`."""
        return self._timings().expected(self.doubts())

    @_until_changed
    def like_code(self) -> NDArray[np.int64]:
        """Return of bursts whose code has no id that of the one that ran the likest, shape (m,).

        -1 where none ran like code, and of bursts whose code has an id itself.
        """
        has_id = self.timed_code >= 0
        alike = np.where(has_id, self._ran.alike, 0.0)
        likest = alike.argmax(axis=1)
        is_like = ~has_id & (alike.max(axis=1) >= ALIKE)
        return np.where(is_like, self.timed_code[likest], -1)

    @_until_changed
    def parts_of_kinds(self) -> NDArray[np.float64]:
        """Share of each burst in the bursts of like code, shape (m,); 0 where that is not known.

        The shares of all that ran one kind of code sum to about 1, however many there are.
        """
        alike = self._ran.alike
        like = np.where(alike >= ALIKE, alike, 0.0) @ self.bursts
        return np.divide(self.bursts, like, out=np.zeros(self.count), where=like > 0)
