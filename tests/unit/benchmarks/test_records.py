"""Records of the tracer become lines as the models define them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memsampd.models.lines import line_stream
from reference.records import accessed_lines

references = st.lists(
    st.tuples(st.integers(0, (1 << 47) - 1024), st.integers(1, 1000), st.booleans()),
    max_size=60,
)


@given(references)
def test_lines_are_those_of_the_models_and_of_every_byte(
    rows: list[tuple[int, int, bool]],
) -> None:
    words = [address | size << 48 | write << 63 for address, size, write in rows]
    lines = accessed_lines(np.array(words, dtype=np.uint64))
    by_byte = [
        line
        for address, size, _ in rows
        for line in sorted({byte >> 6 for byte in range(address, address + size)})
    ]
    assert lines.tolist() == by_byte
    addresses = np.array([row[0] for row in rows], dtype=np.uint64)
    sizes = np.array([row[1] for row in rows], dtype=np.uint16)
    assert lines.tolist() == line_stream(addresses, sizes).tolist()
