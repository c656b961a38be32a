import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memsampd.models.bins import BINS, BINS_PER_OCTAVE, DISTANCE_LIMIT, EDGES, EXACT_LIMIT, bin_of


def test_layout_is_exact_below_4096_and_at_most_a_sixteenth_wide_above() -> None:
    width = np.diff(EDGES)
    assert len(EDGES) == BINS + 1 == 4096 + 28 * 16 + 1
    assert EXACT_LIMIT == 4096
    assert EDGES[0] == 0
    assert EDGES[-1] == DISTANCE_LIMIT == 2**40
    assert (width[:4096] == 1).all()
    assert (width[4096:] * BINS_PER_OCTAVE <= EDGES[4096:-1]).all()


@given(st.integers(0, 2**40 - 1))
def test_a_distance_lies_in_its_bin(distance: int) -> None:
    found = int(bin_of(distance))
    assert EDGES[found] <= distance < EDGES[found + 1]


def test_edges_and_what_lies_beyond() -> None:
    assert bin_of(EDGES[:-1]).tolist() == list(range(BINS))
    assert bin_of([2**40, 2**62]).tolist() == [BINS - 1] * 2
    assert bin_of(np.zeros((2, 3), np.int64)).shape == (2, 3)
