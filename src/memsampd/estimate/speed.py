"""How fast code runs that nobody could time: by its instructions and by its misses."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from memsampd.estimate.events import BurstRecord
from memsampd.models.statstack import StatStack
from memsampd.models.survival import SurvivalFunction
from memsampd.sampler.rates import DISTANT_CYCLES, CoreTimes

ERROR = 0.5
"""Relative error that such a rate may have; it is less for whole programs than for their loops."""
# For a cycle of the modelled core; for an access that misses L1d, and more if it misses L2; and, as
# far as such misses wait for each other, for one that misses L1d, and for one that misses L2 or L3
# and that nothing told beforehand: what is swept line by line is fetched before it is asked for.
# Fitted to the miss ratios of whole runs of the evaluation's programs (docs/estimate.md).
SECONDS = (0.27e-9, 1.1e-9, 0.6e-9, 12e-9, 12e-9, 60e-9)
# Of these. They were fitted where L3 is taken to answer in 10 ns (14 measured on one such CPU).
_SCALED_BY_L3 = (2, 4)
_USUAL_L3_SECONDS = 10e-9
_SCALES = 0.5, 16.0  # at least and at most
_SLOW_INSTRUCTION_SECONDS, _FAST_INSTRUCTION_SECONDS = 2e-9, 0.035e-9
_SLOW_MISS_SECONDS = 300e-9  # a page walk and DRAM
_USUAL_SIZES_BYTES = {"L1d": 32 << 10, "L2": 1 << 20, "L3": 32 << 20}
# Where nobody looked.
_USUAL_INSTRUCTIONS = 3.0  # an access
_USUAL_CYCLES = 0.45  # an instruction
_USUAL_EXPOSURE = 0.1
_LEAST_CYCLES = 1 / 3  # an access, on the modelled core; the begin of a few tells none
_LEAST_EXPOSURE = 0.005


class SpeedModel:
    """Rates of code that was not timed in the target.

    ``seconds an access = c * t_c + m(L1d) * t_1 + m(L2) * t_2 + min(d, m(L1d)) * x * t_d
    + (min(s, m(L2)) - min(s, m(L3))) * x * t_3 + min(s, m(L3)) * x * t_m``, with c the cycles an
    access on the modelled core (``_core/translator/core_model.h``) if all hit, m(.) the miss ratios
    of LRU caches of this machine's sizes, s the scattered accesses (:class:`ReuseHistogram`) and d
    the distant ones an access, and x the part of a distant access's time by which the modelled core
    takes longer: 1 where each waits for the one before, as in a chase of pointers.
    Rates of unlike code differ a hundredfold, this model by some 50 % (one factor for all code, the
    machine's, cancels out wherever accesses only weigh).

    Args:
        cache_sizes_bytes: this machine's data caches by name; usual ones stand in for others.
        line_bytes: size of a line.
        cache_seconds: what an access that hits there takes if the next one waits for it, by name;
            usual ones stand in for others.
    """

    def __init__(
        self,
        cache_sizes_bytes: Mapping[str, int],
        line_bytes: int,
        cache_seconds: Mapping[str, float] | None = None,
    ) -> None:
        sizes = {
            name: max(cache_sizes_bytes.get(name, usual), line_bytes)
            for name, usual in _USUAL_SIZES_BYTES.items()
        }
        order = sorted(sizes, key=lambda name: sizes[name])
        self._sizes_bytes = np.array([sizes[name] for name in order], np.int64)
        self._line_bytes = line_bytes
        self._scales = _scales(cache_seconds or {})
        self._model = StatStack()
        self._latest: tuple[SurvivalFunction, NDArray[np.float64]] | None = None

    def rate(self, burst: BurstRecord, survival: SurvivalFunction) -> float:
        """Return accesses per CPU second.

        Args:
            burst: of at least one access.
            survival: of its reuse distances.
        """
        return float(1 / (self.features(burst, survival) @ np.array(SECONDS)))

    def highest(self, burst: BurstRecord, survival: SurvivalFunction) -> float:
        """Return the rate if nothing misses that may have hit, accesses per CPU second.

        What a burst was too short to see return may have been in L2: of a loop on some tens of KiB
        that brings in a line now and then, such lines make most of the time that is modelled.
        """
        return float(1 / (self._features(burst, self._misses(survival)[1]) @ np.array(SECONDS)))

    def limits(self, burst: BurstRecord, survival: SurvivalFunction) -> tuple[float, float]:
        """Return the lowest and the highest rate that are possible, accesses per CPU second.

        Every miss in L1d waits for memory, or none does; instructions are slow, or as fast as any
        CPU.
        """
        each = burst.instructions / burst.accesses or _USUAL_INSTRUCTIONS
        missed = self._misses(survival)[0][0]
        slow = _SLOW_INSTRUCTION_SECONDS * each + _SLOW_MISS_SECONDS * missed
        return 1 / slow, 1 / (_FAST_INSTRUCTION_SECONDS * each)

    def features(self, burst: BurstRecord, survival: SurvivalFunction) -> NDArray[np.float64]:
        """Return the factors of ``SECONDS`` on this machine, each an access, shape (6,)."""
        return self._features(burst, self._misses(survival)[0])

    def _features(self, burst: BurstRecord, misses: NDArray[np.float64]) -> NDArray[np.float64]:
        return _counts(burst, misses) * self._scales

    def _misses(self, survival: SurvivalFunction) -> NDArray[np.float64]:
        """Miss ratios of L1d, L2 and L3, shape (2, 3): likely ones, and the lowest possible."""
        if self._latest is None or self._latest[0] is not survival:
            curve = self._model.curve(survival, self._sizes_bytes, self._line_bytes)
            self._latest = survival, np.array([curve.miss_ratio, curve.low])
        return self._latest[1]


def _scales(cache_seconds: Mapping[str, float]) -> NDArray[np.float64]:
    """Return how many times ``SECONDS`` are as long on this machine, shape (6,)."""
    longer = cache_seconds.get("L3", _USUAL_L3_SECONDS) / _USUAL_L3_SECONDS
    scale = min(max(longer, _SCALES[0]), _SCALES[1])
    scales = np.ones(len(SECONDS))
    scales[list(_SCALED_BY_L3)] = scale
    scales[-1] = max(scale * SECONDS[-2] / SECONDS[-1], 1.0)  # memory is no faster than L3
    return scales


def _counts(burst: BurstRecord, misses: NDArray[np.float64]) -> NDArray[np.float64]:
    core = burst.core
    if core is not None and core.accesses:
        cycles = max(core.near_cycles / core.accesses, _LEAST_CYCLES)
        distant = min(core.distant / core.accesses, misses[0])
    else:
        cycles = _USUAL_CYCLES * (burst.instructions / burst.accesses or _USUAL_INSTRUCTIONS)
        distant = misses[0]
    scattered = np.minimum(burst.scattered / burst.accesses, misses[1:])
    waits = np.array([distant, scattered[0] - scattered[1], scattered[1]])
    return np.array([cycles, *misses[:2], *(_exposure(core) * waits)])


def _exposure(core: CoreTimes | None) -> float:
    """By which part of a distant access's time all takes longer, above 0 and up to 1."""
    if core is None or not core.distant:
        return _USUAL_EXPOSURE
    longer = (core.distant_cycles - core.near_cycles) / (core.distant * DISTANT_CYCLES)
    return min(max(longer, _LEAST_EXPOSURE), 1.0)
