"""Where a twin is stopped: what the finder counts must be what a CPU would come to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from memsampd.models.lines import line_stream
from memsampd.sampler.records import AccessChunk
from memsampd.sampler.shadow.twin import (
    ROWS_MAXIMUM,
    EndKind,
    EndPoint,
    EndPointFinder,
    Instruction,
    KeptRows,
    count_accesses,
    plan_twin,
    touched_pages,
)

LENGTH = 4


@dataclass(frozen=True)
class Step:
    """One execution of an instruction, as the program lives it."""

    ip: int
    rows: tuple[tuple[int, int, bool], ...]  # address, size, is_write


class Program:
    """An invented run: loads, stores, updates, and instructions of two operands."""

    def __init__(self, seed: int, steps: int = 400, working_set: int = 3000) -> None:
        rng = np.random.default_rng(seed)
        kinds = rng.integers(0, 10, 4000)  # of each instruction
        self.kinds = {0x400000 + LENGTH * n: int(kind) for n, kind in enumerate(kinds)}
        self.steps: list[Step] = []
        ips = list(self.kinds)
        at = 0
        for _ in range(steps):
            # mostly a loop, sometimes on to new code
            at = at + 1 if rng.random() < 0.2 else max(at - int(rng.integers(0, 6)), 0)
            address = 0x10000 + int(rng.integers(0, working_set))
            self.steps.append(self._step(ips[at], address, int(rng.choice([1, 4, 8, 32]))))
        rows = [(step.ip, *row) for step in self.steps for row in step.rows]
        columns = [list(column) for column in zip(*rows, strict=True)]
        self.rows = AccessChunk(
            np.array(columns[0], np.uint64),
            np.array(columns[1], np.uint64),
            np.array(columns[2], np.uint16),
            np.array(columns[3], np.bool_),
        )
        self.starts = np.cumsum([0, *(len(step.rows) for step in self.steps)]).tolist()

    def _step(self, ip: int, address: int, size: int) -> Step:
        kind = self.kinds[ip]
        if kind == 0:  # a string move: nobody can tell its executions by its rows
            return Step(ip, ((address, size, False), (address + 512, size, True)))
        if kind <= 2:
            return Step(ip, ((address, size, False), (address, size, True)))
        return Step(ip, ((address, size, kind % 2 == 0),))

    def inspect(self, ip: int) -> Instruction | None:
        kind = self.kinds[ip]
        return None if kind == 0 else Instruction(LENGTH, kind <= 2, falls_through=kind != 9)

    def finder(self) -> EndPointFinder:
        return EndPointFinder(self.rows, self.inspect)

    def stop_row(self, point: EndPoint, start: int) -> tuple[int, int | None]:
        """Row and instruction that a CPU with this debug register stops at: the oracle."""
        arrivals = 0
        for index, step in enumerate(self.steps):
            if self.starts[index] < start:
                continue
            if point.kind is EndKind.EXECUTE:
                arrivals += step.ip == point.address
                if arrivals == point.arrivals:
                    return self.starts[index], step.ip
            else:
                arrivals += any(
                    address < point.address + 8 and address + size > point.address
                    for address, size, _ in step.rows
                )
                if arrivals == point.arrivals:
                    return self.starts[index + 1], step.ip + LENGTH
        return -1, None


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("working_set", [60, 3000, 100_000])
def test_the_point_is_where_a_cpu_would_stop(seed: int, working_set: int) -> None:
    program = Program(seed, working_set=working_set)
    finder = program.finder()
    start = 0
    for stop in (len(program.rows) // 2, len(program.rows)):
        point = finder.latest(start, stop)
        if point is None:
            continue
        assert point.rows <= stop
        assert program.stop_row(point, start) == (point.rows, point.ip)
        start = point.rows


@pytest.mark.parametrize("seed", range(20))
def test_no_instruction_that_comes_new_leaves_less_error(seed: int) -> None:
    program = Program(seed)
    found = program.finder().latest(0, len(program.rows))
    assert found is not None
    seen = {program.steps[0].ip}
    latest_new = 0
    for index, step in enumerate(program.steps):
        if step.ip not in seen and program.inspect(step.ip) is not None:
            latest_new = program.starts[index]
        seen.add(step.ip)
    cost = 1 if found.kind is EndKind.EXECUTE else 10
    assert found.rows / (10 + cost * found.stops) >= latest_new / 11


def test_a_loop_over_new_data_is_stopped_by_the_data() -> None:
    rows = 100_000
    ip = np.tile(np.array([0x1000, 0x1004], np.uint64), rows // 2)
    address = 0x7F0000000000 + np.arange(rows, dtype=np.uint64) * np.uint64(8)
    sizes, writes = np.full(rows, 8, np.uint16), np.zeros(rows, np.bool_)
    finder = EndPointFinder(
        AccessChunk(ip, address, sizes, writes), lambda _: Instruction(4, False, True)
    )
    point = finder.latest(0, rows)
    assert point == EndPoint(EndKind.TOUCH, int(address[-1]), 1, rows, 0x1008)


def test_a_loop_over_old_data_has_no_point() -> None:
    rows = 10_000
    ip = np.full(rows, 0x1000, np.uint64)
    address = (np.arange(rows, dtype=np.uint64) % np.uint64(4)) * np.uint64(8)
    sizes, writes = np.full(rows, 8, np.uint16), np.zeros(rows, np.bool_)
    finder = EndPointFinder(
        AccessChunk(ip, address, sizes, writes), lambda _: Instruction(4, False, True)
    )
    late = finder.latest(100, rows)
    assert late is None or late.rows - 100 < 16 * 4 + 4


def _no_instruction(ip: int) -> Instruction | None:
    del ip
    return None


@pytest.mark.parametrize("ends_in_call", [False, True])
def test_a_plan_begins_to_count_after_a_lead_in(ends_in_call: bool) -> None:
    program = Program(3, steps=4000, working_set=100_000)
    rows = len(program.rows)
    plan = plan_twin(program.rows, program.inspect, ends_in_call=ends_in_call)
    assert plan is not None
    assert plan.lead_in is not None
    assert rows / 5 < plan.first_row <= 2 * rows / 5
    assert plan.end.rows > 0.7 * rows
    assert (plan.end.kind is EndKind.CALL) == ends_in_call


def test_of_a_long_burst_only_the_beginning_is_timed() -> None:
    """Else what is timed would be the code before a call more often than a random moment is."""
    rows = ROWS_MAXIMUM + 1000
    ip = np.tile(np.array([0x1000, 0x1004], np.uint64), rows // 2)
    address = 0x7F0000000000 + np.arange(rows, dtype=np.uint64) * np.uint64(8)
    chunk = AccessChunk(ip, address, np.full(rows, 8, np.uint16), np.zeros(rows, np.bool_))
    plan = plan_twin(chunk, lambda _: Instruction(4, False, True), ends_in_call=True)
    assert plan is not None
    assert plan.end.kind is EndKind.TOUCH
    assert plan.end.rows <= ROWS_MAXIMUM


def test_what_ends_in_a_call_needs_no_other_point() -> None:
    rows = Program(3, steps=4000).rows
    plan = plan_twin(rows, _no_instruction, ends_in_call=True)
    assert plan is not None
    assert (plan.lead_in, plan.end.rows) == (None, len(rows))
    assert plan_twin(rows, _no_instruction, ends_in_call=False) is None


def test_an_empty_or_short_execution_has_no_plan() -> None:
    program = Program(1, steps=50)
    for rows in (program.rows, KeptRows(lambda chunk: None).rows()):
        assert plan_twin(rows, program.inspect, ends_in_call=True) is None


def test_streamed_rows_are_handed_on_and_the_first_of_them_kept() -> None:
    program = Program(2)
    part = program.rows
    seen: list[AccessChunk] = []
    kept = KeptRows(seen.append)
    repeats = ROWS_MAXIMUM // len(part) + 2
    for _ in range(repeats):
        kept.add(part)
    assert [len(chunk) for chunk in seen] == [len(part)] * repeats
    rows = kept.rows()
    assert len(rows) == ROWS_MAXIMUM
    for name in ("ip", "address", "size_bytes", "is_write"):
        mine, whole = getattr(rows, name), getattr(part, name)
        np.testing.assert_array_equal(mine, np.tile(whole, repeats)[:ROWS_MAXIMUM])
        assert mine.dtype == whole.dtype
        assert not np.shares_memory(mine, whole)


@pytest.mark.parametrize("line_bytes", [32, 64, 128])
def test_accesses_are_those_of_the_models(line_bytes: int) -> None:
    rng = np.random.default_rng(line_bytes)
    address = rng.integers(0, 1 << 20, 5000).astype(np.uint64)
    size_bytes = rng.choice([1, 2, 8, 64, 512], 5000).astype(np.uint16)
    expected = len(line_stream(address, size_bytes, line_bytes))
    assert count_accesses(address, size_bytes, line_bytes) == expected


def pages_of(condition: Callable[[bool], bool], rows: AccessChunk) -> set[int]:
    """Brute force: each page of each reference that fulfils a condition."""
    return {
        page
        for address, size, is_write in zip(
            rows.address.tolist(),
            rows.size_bytes.tolist(),
            rows.is_write.tolist(),
            strict=True,
        )
        if condition(is_write)
        for page in range(address & -4096, address + size, 4096)
    }


def test_touched_pages() -> None:
    program = Program(5, working_set=200_000)
    rows = program.rows
    read, written = touched_pages(rows, len(rows))
    assert written.tolist() == sorted(pages_of(bool, rows))
    code = {ip & -4096 for ip in rows.ip.tolist()}
    assert read.tolist() == sorted(
        (pages_of(lambda is_write: not is_write, rows) | code) - set(written.tolist())
    )
