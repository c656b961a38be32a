"""Dinero's input, read again as its documentation says.

dineroIV(1) and the comments in its readers: ``din`` has a label (0 read, 1 write) and a hexadecimal
address a line, the rest of which is ignored; extended din has an access type (r, w), an address and
a size, both hexadecimal.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from tracing_rows import HEADER, Row, chunk_of, invented, rows, write_bursts

from memsampd.exporters.trace.copying import open_writer
from memsampd.exporters.trace.dinero import DineroWriter
from memsampd.models.lines import line_stream

ROWS: list[Row] = [
    (0x401000, 0x7FFD00000010, 8, False),
    (0x401004, 0, 1, True),
    (0x401008, 0x103E, 4, True),  # crosses into the next line
    (0x40100C, 0x203F, 66, False),  # touches three
    (0x401010, 0x1040, 0, False),
]


def test_traditional(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_bursts(DineroWriter(path, 64), [[chunk_of(ROWS)]])
    assert path.read_text() == (
        "0 7ffd00000010\n1 0\n1 103e\n1 1040\n0 203f\n0 2040\n0 2080\n0 1040\n"
    )


def test_extended(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_bursts(open_writer(path, "dinero4", HEADER), [[chunk_of(ROWS)], [chunk_of(ROWS[:1])]])
    assert path.read_text() == (
        "r 7ffd00000010 8\nw 0 1\nw 103e 4\nr 203f 42\nr 1040 0\nr 7ffd00000010 8\n"
    )


@settings(deadline=None, max_examples=50)
@given(rows)
def test_extended_holds_all_but_the_instructions(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[Row]
) -> None:
    path = tmp_path_factory.mktemp("d") / "x"
    write_bursts(DineroWriter(path, 64, extended=True), [[chunk_of(wanted)]])
    fields = [line.split(" ") for line in path.read_text().splitlines()]
    found = [(int(address, 16), int(size, 16), kind) for kind, address, size in fields]
    assert found == [(address, size, "rw"[write]) for _, address, size, write in wanted]


@settings(deadline=None, max_examples=50)
@given(rows)
def test_traditional_touches_the_lines_that_the_models_see(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[Row]
) -> None:
    near = [(ip, address % 2**48, size, write) for ip, address, size, write in wanted]
    chunk = chunk_of(near)
    path = tmp_path_factory.mktemp("d") / "x"
    write_bursts(DineroWriter(path, 64), [[chunk]])
    fields = [line.split(" ") for line in path.read_text().splitlines()]
    lines = [int(address, 16) // 64 for _, address in fields]
    assert lines == line_stream(chunk.address, chunk.size_bytes).tolist()
    assert {label for label, _ in fields} <= {"0", "1"}


def test_more_rows_than_are_written_at_once(tmp_path: Path) -> None:
    path = tmp_path / "x"
    chunk = invented(100_000)
    write_bursts(open_writer(path, "dinero", HEADER), [[chunk]])
    numbers = np.array([line.split() for line in path.read_text().splitlines()])
    assert [int(address, 16) for address in numbers[:, 1]] == chunk.address.tolist()
    assert np.array_equal(numbers[:, 0] == "1", chunk.is_write)
