"""From sums over windows to what is said of phases and of the whole run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd.estimate.accounts import PhaseAccount, WindowSums
from memsampd.estimate.bounds import Part, bounded, spread_of_sum
from memsampd.estimate.layout import CurveLayout
from memsampd.estimate.memory import BurstMemory
from memsampd.estimate.records import Estimate, PhaseEstimate, Totals
from memsampd.estimate.sharing import LEAST_RATE
from memsampd.sampler.clock.rates import mean_rate
from memsampd.sampler.rates import UNKNOWN_RATE, AccessRate

USUAL_SCATTER = 0.04
"""Variance of a burst's miss ratio m before two were seen, in units of m (1 - m)."""
_ROUNDING = 1e-9  # of sums that were added to and taken from


class _Whole(msgspec.Struct, frozen=True):
    """What phases are shares of."""

    accesses: float
    cpu_seconds: float
    unknown_cpu_seconds: float


def summarise(
    layout: CurveLayout,
    accounts: Mapping[int, PhaseAccount],
    sums: Mapping[int, WindowSums],
    memory: BurstMemory | None,
    totals: Totals,
    only: Collection[int] | None = None,
) -> Estimate:
    """Say all that is known.

    Args:
        layout: of the curves.
        accounts: of the phases, by id.
        sums: over all windows of each of them, settled or not.
        memory: of bursts; None before the first.
        totals: for counters.
        only: the phases that are wanted, without curves and rate of the run; None: all.
    """
    whole = _Whole(
        sum(each.accesses for each in sums.values()),
        sum(account.cpu_seconds for account in accounts.values()),
        sum(each.unknown_cpu_seconds for each in sums.values()),
    )
    parts = {
        id: _part(id, account, sums[id], memory, layout)
        for id, account in accounts.items()
        if only is None or id in only
    }
    phases = tuple(
        _phase(id, accounts[id], parts[id], whole, layout)
        for id in sorted(parts)
        if accounts[id].windows or accounts[id].taken.bursts  # else known, but not met since
    )
    told = [part for part in parts.values() if part.sums.accesses > 0 and only is None]
    curves = {}
    if told:
        sampled = sum(phase.sampled_accesses for phase in phases)
        curves = dict(layout.curves(bounded(told, len(layout.sizes_bytes)), sampled))
    rated = sum(each.rated_cpu_seconds for each in sums.values())
    return Estimate(
        windows=sum(account.windows for account in accounts.values()),
        cpu_seconds=whole.cpu_seconds,
        unknown_cpu_seconds=whole.unknown_cpu_seconds,
        phases=phases,
        curves=curves,
        rate=_whole_rate(whole, told) if only is None else UNKNOWN_RATE,
        rate_known_share=min(rated / whole.cpu_seconds, 1.0) if whole.cpu_seconds > 0 else 0.0,
        totals=totals,
        sizes_bytes=layout.sizes_bytes,
    )


def _part(
    id: int,
    account: PhaseAccount,
    sums: WindowSums,
    memory: BurstMemory | None,
    layout: CurveLayout,
) -> Part:
    """A phase as a part of the run, with what its bursts say of errors."""
    ratio = np.clip(sums.misses / sums.accesses, 0, 1) if sums.accesses > 0 else 0 * sums.misses
    usual: NDArray[np.float64] = USUAL_SCATTER * ratio * (1 - ratio)
    rows = account.taken.rows + account.stored.rows
    beyond = (account.taken.beyond_rows + account.stored.beyond_rows) / rows if rows else 0.0
    samples = account.watches.samples
    if memory is None:
        return Part(sums, account.squares, None, usual, beyond, samples=samples)
    mine = (memory.phase == id) & ~memory.is_memoryless
    spread = mean_rate(memory.rates[mine], memory.errors[mine])[1] if mine.any() else None
    seen = layout.seen(sums.weights[: memory.count], memory.sight_lines)
    scatter = memory.scatter(id, usual)
    return Part(sums, account.squares, spread, scatter, beyond, seen, samples)


def _phase(
    id: int, account: PhaseAccount, part: Part, whole: _Whole, layout: CurveLayout
) -> PhaseEstimate:
    sums, histogram = part.sums, account.histogram
    is_told = histogram.accesses > 0 or sums.unknown_cpu_seconds < account.cpu_seconds
    curves = {}
    makes_accesses = sums.accesses > LEAST_RATE * account.cpu_seconds
    if makes_accesses and is_told:
        row = bounded([part], len(layout.sizes_bytes))
        curves = dict(layout.curves(row, histogram.accesses))
    rate = UNKNOWN_RATE
    if not makes_accesses:
        rate = _no_accesses(sums.unknown_cpu_seconds, account.cpu_seconds)
    if curves and account.cpu_seconds > 0:
        rate = AccessRate(sums.accesses / account.cpu_seconds, part.spread, "bursts")
    share, of = sums.accesses, whole.accesses
    if not of > 0:
        share, of = account.cpu_seconds, whole.cpu_seconds
    return PhaseEstimate(
        id=id,
        windows=account.windows,
        cpu_seconds=account.cpu_seconds,
        weight=share / of if of > 0 else 0.0,
        bursts=account.taken.bursts,
        sampled_accesses=histogram.accesses,
        censored_share=histogram.censored_share,
        write_share=account.write_share or 0.0,
        rate=rate,
        curves=curves,
        stored_bursts=account.stored.bursts,
        stored_age_seconds=-account.latest_stored_seconds if account.stored.bursts else None,
        instructions=account.instructions,
        cycles_per_instruction=account.cycles_per_instruction,
    )


def _no_accesses(unknown_cpu_seconds: float, cpu_seconds: float) -> AccessRate:
    """The rate of windows without any access: 0, if the code of all of them is known."""
    unknown_share = unknown_cpu_seconds / cpu_seconds if cpu_seconds > 0 else 1.0
    return AccessRate(0.0, 0.0, "bursts") if unknown_share < _ROUNDING else UNKNOWN_RATE


def _whole_rate(whole: _Whole, parts: Sequence[Part]) -> AccessRate:
    """The rate of the whole run: errors of phases are taken to be independent."""
    if not whole.cpu_seconds > 0:
        return UNKNOWN_RATE
    if not whole.accesses > 0:
        return _no_accesses(whole.unknown_cpu_seconds, whole.cpu_seconds)
    known = [part.spread for part in parts if part.spread is not None]
    spread = None
    if len(known) == len(parts):
        spread = spread_of_sum(parts, known, whole.accesses)
    return AccessRate(whole.accesses / whole.cpu_seconds, spread, "bursts")
