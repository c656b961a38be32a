"""How fast code runs that nobody could time: by its instructions and by its misses."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from memsampd.estimate.events import BurstRecord
from memsampd.models.statstack import StatStack
from memsampd.models.survival import SurvivalFunction

ERROR = 0.7
"""Relative error that such a rate may have; it is less for whole programs than for their loops."""
# For an instruction; for a branch that goes the rarer way, as about half of those were guessed
# wrong; for an access that misses L1d, and more if it misses L2, much more if nothing told
# beforehand that it comes: what is swept line by line is fetched before it is asked for, from
# wherever. They are small because several misses are under way at once. Fitted to the exact
# accesses of the evaluation's programs (benchmarks/speed_model.py): whole runs, not single loops.
SECONDS = (0.10e-9, 3e-9, 1.7e-9, 0.5e-9, 10e-9)
_SLOW_INSTRUCTION_SECONDS, _FAST_INSTRUCTION_SECONDS = 2e-9, 0.035e-9
_SLOW_MISS_SECONDS = 300e-9  # a page walk and DRAM
_USUAL_SIZES_BYTES = {"L1d": 32 << 10, "L2": 1 << 20}
_USUAL_INSTRUCTIONS = 3.0  # an access, where nobody counted


class SpeedModel:
    """Rates of code that was not timed in the target.

    ``seconds an access = i * t_i + b * t_b + m(L1d) * t_1 + m(L2) * t_2 + min(s, m(L2)) * t_s``,
    with i the instructions and b the branches that go the rarer way an access, m(.) the miss ratios
    of LRU caches of this machine's sizes, and s the scattered accesses (:class:`ReuseHistogram`) an
    access. Rates of unlike code differ a hundredfold, this model by some 70 % (one factor for all
    code, the machine's, cancels out wherever accesses only weigh).

    Args:
        cache_sizes_bytes: this machine's data caches by name; usual ones stand in for others.
        line_bytes: size of a line.
    """

    def __init__(self, cache_sizes_bytes: Mapping[str, int], line_bytes: int) -> None:
        sizes = {
            name: max(cache_sizes_bytes.get(name, usual), line_bytes)
            for name, usual in _USUAL_SIZES_BYTES.items()
        }
        order = sorted(sizes, key=lambda name: sizes[name])
        self._sizes_bytes = np.array([sizes[name] for name in order], np.int64)
        self._line_bytes = line_bytes
        self._model = StatStack()
        self._latest: tuple[SurvivalFunction, NDArray[np.float64]] | None = None

    def rate(self, burst: BurstRecord, survival: SurvivalFunction) -> float:
        """Return accesses per CPU second.

        Args:
            burst: of at least one access.
            survival: of its reuse distances.
        """
        return float(1 / (self.features(burst, survival) @ np.array(SECONDS)))

    def limits(self, burst: BurstRecord, survival: SurvivalFunction) -> tuple[float, float]:
        """Return the lowest and the highest rate that are possible, accesses per CPU second.

        Every miss in L1d waits for memory, or none does; instructions are slow, or as fast as any
        CPU.
        """
        each, _, missed, *_ = self.features(burst, survival)
        slow = _SLOW_INSTRUCTION_SECONDS * each + _SLOW_MISS_SECONDS * missed
        return 1 / slow, 1 / (_FAST_INSTRUCTION_SECONDS * each)

    def features(self, burst: BurstRecord, survival: SurvivalFunction) -> NDArray[np.float64]:
        """Return the factors: instructions, rare branches and misses an access, shape (5,)."""
        each = burst.instructions / burst.accesses or _USUAL_INSTRUCTIONS
        if self._latest is None or self._latest[0] is not survival:
            curve = self._model.curve(survival, self._sizes_bytes, self._line_bytes)
            self._latest = survival, curve.miss_ratio
        misses = self._latest[1]
        scattered = min(burst.scattered / burst.accesses, misses[-1])
        return np.array([each, burst.rare_branches / burst.accesses, *misses, scattered])
