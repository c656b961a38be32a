import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from memsampd.errors import UsageError
from memsampd.models.lines import line_stream

References = list[tuple[int, int]]

REFERENCES = st.lists(st.tuples(st.integers(0, 2**64 - 5000), st.integers(0, 4096)), max_size=30)


def arrays(references: References) -> tuple[NDArray[np.uint64], NDArray[np.uint16]]:
    address = np.array([a for a, _ in references], np.uint64)
    return address, np.array([s for _, s in references], np.uint16)


@given(REFERENCES, st.sampled_from([1, 32, 64, 128, 4096]))
def test_every_line_touched_once_in_order(references: References, line_bytes: int) -> None:
    expected = [
        line
        for address, size in references
        for line in range(address // line_bytes, (address + max(size, 1) - 1) // line_bytes + 1)
    ]
    lines = line_stream(*arrays(references), line_bytes)
    assert lines.dtype == np.uint64
    assert lines.tolist() == expected


def test_the_last_line_of_the_address_space_does_not_overflow() -> None:
    address, size = arrays([(2**64 - 8, 8)])
    assert line_stream(address, size).tolist() == [2**58 - 1]


def test_crossing_and_wide_references() -> None:
    address, size = arrays([(0, 8), (60, 8), (128, 64), (100, 832)])
    assert line_stream(address, size).tolist() == [0, 0, 1, 2, *range(1, 15)]


@pytest.mark.parametrize("line_bytes", [0, -64, 48])
def test_lines_must_be_powers_of_two(line_bytes: int) -> None:
    with pytest.raises(UsageError, match="power of two"):
        line_stream(*arrays([(0, 8)]), line_bytes)
