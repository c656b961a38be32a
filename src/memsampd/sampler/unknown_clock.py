"""The access clock of machines where nothing tells the time of an access."""

from __future__ import annotations

from collections.abc import Sequence

from memsampd.sampler.records import UNKNOWN_RATE, AccessRate, Burst


class UnknownClock:
    """Says that the rate is not known (:class:`memsampd.sampler.protocols.AccessClock`).

    Without a counter of instructions a burst, which runs at another speed, tells how many accesses
    an instruction makes but not how long it takes. Windows are then weighted by CPU time, which
    every output says.
    """

    name = "none"

    def measure(self, bursts: Sequence[Burst]) -> AccessRate:
        """Know nothing."""
        del bursts
        return UNKNOWN_RATE
