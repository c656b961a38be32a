from __future__ import annotations

from memsampd.phases.paces import Paces
from memsampd.sampler.rates import CodeRate
from memsampd.sampler.records import Spacing

SAMPLES = 50


def seeks(paces: Paces, *rates: float, code: int = 3, pairs: int = 40) -> list[bool]:
    """Whether a burst is to be tried for after each of some windows."""
    found = []
    for rate in rates:
        paces.add_window((CodeRate(code, rate, pairs),), SAMPLES, 0, None)
        found.append(paces.seek())
    return found


def test_code_that_goes_as_in_no_burst_of_it_is_sought_but_not_forever() -> None:
    paces = Paces()
    paces.add(3, 1e9)
    assert seeks(paces, 1.05e9, 1.04e9, 0.95e9, 0.94e9) == 4 * [False]
    assert seeks(paces, 2e8, 2.02e8, 2.01e8, 2e8) == [False, True, True, False]
    assert seeks(paces, 4e8, 4e8) == [False, True]
    paces.add(3, 4.1e8)
    assert seeks(paces, 4e8) == [False]


def test_rates_that_vary_from_window_to_window_are_left_to_chance() -> None:
    paces = Paces()
    paces.add(3, 1e9)
    assert not any(seeks(paces, *(2e8 * 1.1**step for step in range(40))))


def test_a_rate_of_other_code_or_of_few_samples_tells_nothing() -> None:
    paces = Paces()
    paces.add(3, 1e9)
    assert seeks(paces, 2e8, 2e8, pairs=5) == [False, False]
    paces.add_window((), SAMPLES, 0, None)
    assert not paces.seek()
    assert seeks(paces, 1e9, 1e9, code=4) == [False, True]


def test_what_is_remembered_is_bounded() -> None:
    paces = Paces()
    found = seeks(paces, *(1e6 * 1.02**step for step in range(700)))
    assert 0 < sum(found) < 2 * 700 * 0.02 / 0.1 + 2  # two at each rate that can be told apart
    for code in range(1000):
        paces.add(code, 1e9)
    assert len(paces._known) == 256
    for _ in range(100):
        paces.add(999, 1e9)
    assert sum(map(len, paces._known.values())) <= 2 * 256


def spaced(paces: Paces, *octaves: float, phase: int = 1, error: float = 0.2) -> list[bool]:
    """The same for windows whose data lay so far apart."""
    found = []
    for each in octaves:
        paces.add_window((), SAMPLES, phase, Spacing(each, error))
        found.append(paces.seek())
    return found


def test_merged_phases_share_what_is_known_of_their_data() -> None:
    paces = Paces()
    paces.add_spacing(1, Spacing(4.0, 0.2))
    paces.add_spacing(2, Spacing(4.2, 0.2))
    paces.add_spacing(2, Spacing(9.0, 0.2))
    paces.merge(2, 1)
    assert spaced(paces, 4.0, 4.1, 9.0, 9.1) == 4 * [False]
    assert len(paces._known[("spacing", 1)]) == 4  # two at each level
    assert ("spacing", 2) not in paces._known
    # A window before the merge is as steady with the next one as one after it.
    assert spaced(paces, 14.0, phase=3) == [False]
    paces.merge(3, 1)
    assert spaced(paces, 14.1) == [True]


def test_data_that_lie_as_in_no_burst_of_their_phase_are_sought() -> None:
    paces = Paces()
    paces.add_spacing(1, Spacing(4.0, 0.2))
    paces.add_spacing(1, None)
    assert spaced(paces, 4.4, 4.3, 3.5, 3.6) == 4 * [False]
    assert spaced(paces, 9.0, 9.2, 8.9, 9.1) == [False, True, True, False]
    paces.add_spacing(1, Spacing(12.0, 0.2))
    assert spaced(paces, 12.1, 12.3) == [False, False]
    # Not those of another phase, nor where windows differ or tell too little.
    assert spaced(paces, 4.0, 4.0, phase=2) == [False, True]
    assert not any(spaced(paces, *(0.6 * step for step in range(20)), phase=3))
    assert not any(spaced(paces, 20.0, 20.0, error=0.8))
