"""The bursts that estimates rest on: the latest, and of older ones those unlike each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from memsampd import _core
from memsampd.sampler.records import Spacing

_ALIKE = 0.7  # from what likeness of two branch vectors on, 0..1, they are of the same code
# Timings of bursts that ran the same code, and whose curves differ by no more than a tenth of the
# accesses anywhere, contradict each other if one is so many times the other.
# Registers that begin anew between two samples, unseen, make code seem slower, never faster.
_SAME_CODE = 0.9
_SAME_CURVE = 0.1
_CONTRADICTION = 2.0
_CONFIRMATION = 1.3
# The model of rates is no further off than this, mostly: the faster of two that contradict each
# other is taken if it is as near to the model, and none that is so much faster than the model
# unless another one confirms it. Windows that agree are believed up to twice that.
_NEAR_MODEL = 3.0
_TOO_FAST = 3.0
_FAR_TOO_FAST = 6.0
# What the rates of two stops in the same code are taken to differ by.
_USUAL_VARIATION = 0.2
# Bursts without an access say nothing of the rates of others.
_MEMORYLESS_PRECISION = 1e-12
_RIGHT_BURSTS = 0.25  # bursts that the model of rates is taken to have been right for, of any code
_LEAST_WEIGHT = 1e-12

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

    Attributes:
        count: bursts, or such as stand for several: m.
    """

    def __init__(
        self, bins: int, values: int, capacity: int = 128, compared: int | None = None
    ) -> None:
        if capacity < 4:
            raise ValueError("a memory of at least 4 bursts")
        self.count = 0
        self._window = np.zeros(capacity, np.int64)
        self._phase = np.zeros(capacity, np.int64)
        self._bursts = np.zeros(capacity)
        # Of the bins that any burst ran, in the order of their first appearance: a column each.
        self._column_of = np.full(bins, -1, np.int64)
        self._columns = 0
        self._code = np.zeros((capacity, 64))
        self._log_rate = np.zeros(capacity)
        self._precision = np.zeros(capacity)
        self._error = np.zeros(capacity)
        self._is_timed = np.zeros(capacity, np.bool_)
        self._is_memoryless = np.zeros(capacity, np.bool_)
        self._timed_code = np.full(capacity, -1, np.int64)
        self._is_stored = np.zeros(capacity, np.bool_)
        self._sight_lines = np.zeros(capacity)
        self._spacing = np.full((capacity, 2), np.nan)
        self._log_model = np.zeros(capacity)
        self._log_highest = np.zeros(capacity)
        self._curves = np.zeros((capacity, values))
        self._compared = np.zeros((capacity, values if compared is None else compared))
        self._alike = np.zeros((capacity, capacity))
        self._steady_rates: dict[int, float] = {}
        self._found: dict[Callable[[BurstMemory], Any], Any] = {}

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
        """Shares of their instructions by column, zeros where not known, shape (m, columns + 1).

        Bins that no burst ran are one column, the last.
        """
        return self._code[: self.count, : self._columns + 1]

    @property
    def seen_code(self) -> NDArray[np.bool_]:
        """Which bins any burst ran code of, shape (bins,)."""
        return self._column_of >= 0

    def compact(self, vectors: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
        """Return branch vectors with the columns of :attr:`code`, shape (n, columns + 1).

        Args:
            vectors: hits by bin, whole numbers below 65536; zeros stand in for those of another
                length.
        """
        hits = [np.ascontiguousarray(each, np.uint16) for each in vectors]
        rows = _core.hits_by_column(hits, self._column_of, self._columns)
        return np.frombuffer(rows).reshape(len(hits), self._columns + 1)

    @property
    def curves(self) -> NDArray[np.float64]:
        """Figures of their curves, shape (m, values)."""
        return self._curves[: self.count]

    @property
    def is_timed(self) -> NDArray[np.bool_]:
        """Whose rates were measured in the target, shape (m,)."""
        return self._is_timed[: self.count]

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
        return np.where(self.is_in_doubt, -1, self._timed_code[: self.count])

    @property
    def rates(self) -> NDArray[np.float64]:
        """Their own rates, accesses per CPU second, shape (m,)."""
        return np.where(self.is_memoryless, 0.0, np.exp(self._log_rate[: self.count]))

    @property
    def errors(self) -> NDArray[np.float64]:
        """Relative errors that these may have, shape (m,)."""
        return self._error[: self.count]

    @property
    def spacing(self) -> NDArray[np.float64]:
        """Octaves and error of how far apart data lay in their windows, or NaN, shape (m, 2)."""
        return self._spacing[: self.count]

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
            spacing: how far apart the data of its window lay.
            highest: the rate by the model if nothing misses that may have hit; None: no other.
            compared: figures that show whether two bursts missed alike, shape (compared,); None:
                those of its curve.

        Returns:
            Its row, and rows (gone, into) if two others were made one to make room for it.
        """
        joined = self._make_room() if self.count == len(self._window) else None
        row = self.count if joined is None else joined[0]
        self.count = max(self.count, row + 1)
        self._window[row], self._phase[row], self._bursts[row] = window, phase, 1
        self._set_code(row, code)
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
        self._found.clear()
        self._compare(row)
        return row, joined

    def _set_code(self, row: int, code: NDArray[Any]) -> None:
        self._code[row] = 0.0
        if len(code) != len(self._column_of):
            return
        bins = np.flatnonzero(code)
        fresh = bins[self._column_of[bins] < 0]
        self._column_of[fresh] = np.arange(self._columns, self._columns + len(fresh))
        self._columns += len(fresh)
        lacking = self._columns + 1 - self._code.shape[1]
        if lacking > 0:
            grown = max(lacking, self._code.shape[1])
            self._code = np.pad(self._code, ((0, 0), (0, grown)))
        if len(bins):
            self._code[row, self._column_of[bins]] = code[bins] / code.sum()

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
        is_known = self.compact([code]).any() & self.has_code()
        return np.asarray((self.likeness([code], [-1])[0] >= _ALIKE) | ~is_known)

    def likeness(
        self, vectors: Sequence[NDArray[Any]], phases: Sequence[int]
    ) -> NDArray[np.float64]:
        """Bhattacharyya's coefficient of code with that of the bursts, 0..1, shape (n, m).

        Where one of the two is not known, 1 in the same phase and else 0.

        Args:
            vectors: branch vectors, hits, n of shape (bins,); of another length if not known.
            phases: in which it ran.
        """
        hits = self.compact(vectors)
        shares = hits / np.maximum(hits.sum(axis=1, keepdims=True), 1)
        return self._or_phase(np.sqrt(shares) @ self._roots().T, shares, np.array(phases))

    @_until_changed
    def likenesses(self) -> NDArray[np.float64]:
        """Return the same of the bursts with each other, shape (m, m)."""
        alike = self._alike[: self.count, : self.count]
        return self._or_phase(alike, self.code, self.phase)

    @_until_changed
    def has_code(self) -> NDArray[np.bool_]:
        """Of which of them it is known what code they ran, shape (m,)."""
        return np.asarray(self.code.any(axis=1))

    @_until_changed
    def _roots(self) -> NDArray[np.float64]:
        """Square roots of :attr:`code`."""
        return np.sqrt(self.code)

    def _or_phase(
        self, alike: NDArray[np.float64], code: NDArray[np.float64], phase: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        is_known = np.logical_and.outer(code.any(axis=1), self.has_code())
        return np.where(is_known, alike, np.equal.outer(phase, self.phase))

    def drop_stored(self, phase: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Forget what was taken of a phase before the attach.

        Returns:
            Rows that are kept, in their new order, and rows that were dropped.
        """
        gone = self.is_stored & (self.phase == phase)
        kept, dropped = np.flatnonzero(~gone), np.flatnonzero(gone)
        count = len(kept)
        for values in (
            self._window,
            self._phase,
            self._bursts,
            self._code,
            self._log_rate,
            self._precision,
            self._error,
            self._is_timed,
            self._is_memoryless,
            self._timed_code,
            self._is_stored,
            self._sight_lines,
            self._spacing,
            self._log_model,
            self._log_highest,
            self._curves,
            self._compared,
        ):
            values[:count] = values[kept]
        self._alike[:count, :count] = self._alike[np.ix_(kept, kept)]
        self._code[count:] = 0
        self.count = count
        self._found.clear()
        self._forget_columns()
        return kept, dropped

    def _forget_columns(self) -> None:
        """Code that no burst is left of was not seen."""
        used = np.flatnonzero(self._code[: self.count, : self._columns].any(axis=0))
        fresh = np.full(self._columns + 1, -1, np.int64)
        fresh[used] = np.arange(len(used))
        self._column_of = fresh[self._column_of]  # the last one where it is -1
        code = np.zeros_like(self._code)
        code[:, : len(used)] = self._code[:, used]
        self._code, self._columns = code, len(used)

    def _compare(self, row: int) -> None:
        """Bhattacharyya's coefficient of this burst's code with the others', 0..1."""
        roots = self._roots()
        likeness = roots @ roots[row]
        self._alike[row, : self.count] = likeness
        self._alike[: self.count, row] = likeness

    def _make_room(self) -> tuple[int, int]:
        """Make two bursts of the older half one; returns the rows (gone, into)."""
        older = np.argsort(self._window, kind="stable")[: max(self.count // 2, 2)]
        likeness = self._alike[np.ix_(older, older)].copy()
        likeness -= self._phase[older][:, None] != self._phase[older][None, :]
        memoryless = self._is_memoryless[older]
        likeness -= 2.0 * (memoryless[:, None] != memoryless[None, :])
        likeness[np.tril_indices(len(older))] = -4
        first, second = np.unravel_index(int(np.argmax(likeness)), likeness.shape)
        gone, into = int(older[first]), int(older[second])
        share = float(self._bursts[gone] / (self._bursts[gone] + self._bursts[into]))
        for rows in (self._code, self._curves, self._compared):
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
        self._code[gone] = 0
        self._found.clear()
        self._compare(into)
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

    def set_steady(self, code: int, log_rate: float) -> None:
        """Note at which rate windows run code of this id (:attr:`timed_code`); NaN: at several."""
        self._steady_rates[code] = log_rate
        if len(self._steady_rates) > len(self._window):  # more than there are bursts
            del self._steady_rates[next(iter(self._steady_rates))]
        self._found.clear()

    @_until_changed
    def _steady(self) -> NDArray[np.float64]:
        """Logarithm of the rate at which windows run the code of each; NaN where they differ."""
        codes = self._timed_code[: self.count].tolist()
        return np.array([self._steady_rates.get(code, math.nan) for code in codes])

    @property
    def is_in_doubt(self) -> NDArray[np.bool_]:
        """Whose timing another one of the same code contradicts, or the model, shape (m,).

        None where the windows that ran this code agree on a rate: that is taken in its place.
        """
        return self._doubts()[0]

    @property
    def is_trusted(self) -> NDArray[np.bool_]:
        """Whose timing counts, shape (m,); of those in doubt, a fast one that is likely."""
        return self._doubts()[1]

    @_until_changed
    def _doubts(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
        """Who is in doubt, who is trusted, and of these whose rate is that of windows."""
        rates, curves = self._log_rate[: self.count], self._compared[: self.count]
        faster = np.subtract.outer(rates, rates)
        same = (
            np.logical_and.outer(self.is_timed, self.is_timed)
            & np.equal.outer(self.is_stored, self.is_stored)
            & (self._alike[: self.count, : self.count] >= _SAME_CODE)
        )
        np.fill_diagonal(same, val=False)
        apart = np.abs(faster) > np.log(_CONTRADICTION)
        for row in np.flatnonzero((same & apart).any(axis=1)):
            same[row] &= np.abs(curves - curves[row]).max(axis=1) <= _SAME_CURVE
        apart &= same
        is_slower = (apart & (faster < 0)).any(axis=1)
        is_confirmed = (same & (np.abs(faster) < np.log(_CONFIRMATION))).any(axis=1)
        over_model = rates - self._log_model[: self.count]
        over_highest = rates - self._log_highest[: self.count]
        is_too_fast = self.is_timed & (over_highest > np.log(_TOO_FAST)) & ~is_confirmed
        is_steady = self._steady() - self._log_highest[: self.count] < np.log(_FAR_TOO_FAST)
        is_odd = apart.any(axis=1) | is_too_fast
        goes_by_windows = is_steady & self.is_timed
        in_doubt = is_odd & ~is_steady
        is_likely = is_confirmed | (np.abs(over_model) < np.log(_NEAR_MODEL))
        is_likely |= ~in_doubt
        trusted = goes_by_windows | (self.is_timed & ~is_slower & is_likely)
        return in_doubt, trusted, goes_by_windows

    @_until_changed
    def expected_rates(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Rates of all bursts: those that were measured, and what these tell of the others.

        A burst that was not timed goes as fast as the model says, corrected by what the model
        missed the timed bursts of like code by: the mean logarithm, as if a quarter of a burst more
        had not been missed at all. What it misses other code by tells nothing of this one. Where
        fewer bursts of like code were timed than were not, registers may have been steady by
        chance, which tells too low a rate: for those too many the model is taken to have been
        right, too, and a measured rate is not taken whole. Times of another run count where no like
        code was timed since: the same code may go at another rate now. Timings that contradict each
        other, or are impossible by the model, do not count (``is_trusted``).

        Returns:
            Accesses per CPU second, shape (m,), and whether one of like code was timed in the
            target.
        """
        is_timed = self.is_trusted
        alike = self._alike[: self.count, : self.count]
        like = np.where(alike >= _ALIKE, alike, 0.0)
        is_told = ((like > 0) & is_timed & ~self.is_stored).any(axis=1)
        counts = is_timed & ~(self.is_stored & is_told)
        weight = like * (is_timed * self.bursts)
        weight[np.ix_(is_told, self.is_stored)] = 0.0
        modelled = self._log_model[: self.count]
        measured = np.where(self._doubts()[2], self._steady(), self._log_rate[: self.count])
        missed = np.where(is_timed, measured - modelled, 0.0)
        told = weight.sum(axis=1)
        doubt = np.maximum(like @ (~self.is_timed * self.bursts) - told, 0.0)
        corrected = modelled + weight @ missed / (told + doubt + _RIGHT_BURSTS)
        believed = measured - missed * doubt / np.maximum(told + doubt, _LEAST_WEIGHT)
        rates = np.exp(np.where(counts, believed, corrected))
        is_rated = counts | weight.any(axis=1) | self.is_memoryless
        return np.where(self.is_memoryless, 0.0, rates), is_rated

    @_until_changed
    def like_code(self) -> NDArray[np.int64]:
        """Return of bursts whose code has no id that of the one that ran the likest, shape (m,).

        -1 where none ran like code, and of bursts whose code has an id itself.
        """
        has_id = self.timed_code >= 0
        alike = np.where(has_id, self._alike[: self.count, : self.count], 0.0)
        likest = alike.argmax(axis=1)
        is_like = ~has_id & (alike.max(axis=1) >= _ALIKE)
        return np.where(is_like, self.timed_code[likest], -1)

    @_until_changed
    def parts_of_kinds(self) -> NDArray[np.float64]:
        """Share of each burst in the bursts of like code, shape (m,); 0 where that is not known.

        The shares of all that ran one kind of code sum to about 1, however many there are.
        """
        alike = self._alike[: self.count, : self.count]
        like = np.where(alike >= _ALIKE, alike, 0.0) @ self.bursts
        return np.divide(self.bursts, like, out=np.zeros(self.count), where=like > 0)
