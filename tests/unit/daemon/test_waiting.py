"""Which code bursts count as having seen, though their windows go on."""

from __future__ import annotations

import numpy as np
from rowless import rowless_burst

from memsampd.daemon.tracer import CountedBurst
from memsampd.daemon.waiting import WaitingBursts
from memsampd.models.histogram import ReuseHistogram
from memsampd.phases.windows import WindowCutter, code_bins, hash_bins


def test_what_a_waiting_burst_ran_was_seen() -> None:
    ips = np.array([7, 7, 9], np.uint64)
    waiting = WaitingBursts(WindowCutter(0.1, 8, lambda _, ips: ips))
    burst = rowless_burst(time_seconds=2.0, instructions=3)
    waiting.add([CountedBurst(burst, ReuseHistogram.empty(), code_ips=ips)])
    seen = np.zeros(code_bins(8), np.bool_)
    ran = np.flatnonzero(waiting.seen_with(seen))
    assert set(ran.tolist()) == set(hash_bins(ips, code_bins(8)).tolist())
    assert not seen.any()
    # Nothing is known of others yet, or their code is not.
    for bins in (0, 1):
        assert waiting.seen_with(np.ones(bins, np.bool_)).tolist() == bins * [True]
    assert not waiting.take(2.0)
    assert [each.time_seconds for each in waiting.take()] == [2.0]
    assert not waiting.seen_with(seen).any()
