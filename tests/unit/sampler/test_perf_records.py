"""Records of perf events: laid out by the kernel's ABI, cut short, wrapped round, and any bytes."""

from __future__ import annotations

import random
import struct

import numpy as np
import perf_inputs
import perf_records as abi
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from perf_inputs import COMBINATIONS, PerfInput
from perf_records import SampleFields

from memsampd import _core
from memsampd.sampler.perf.rings import SAMPLE_DTYPE

ALL = abi.ALWAYS | sum(abi.OTHERS)
CHAINLESS = ALL ^ abi.CALLCHAIN
LATER_WEIGHT = CHAINLESS ^ abi.WEIGHT | abi.WEIGHT_STRUCT


def parse(
    data: bytes, sample_type: int, tail: int = 0, head: int | None = None
) -> tuple[NDArray[np.void], list[tuple[object, ...]], int, int]:
    samples, events, lost, throttled = _core.parse_records(
        data, sample_type, tail, len(data) if head is None else head
    )
    return np.frombuffer(samples, SAMPLE_DTYPE), list(events), lost, throttled


def expected(fields: SampleFields, sample_type: int) -> NDArray[np.void]:
    """What the parser should make of it: 0 where nothing was asked for."""
    row = np.zeros(1, SAMPLE_DTYPE)
    row["time_ns"], row["ip"] = fields.time_ns, fields.ip
    row["pid"], row["tid"] = fields.pid, fields.tid
    row["event"] = fields.event if sample_type & abi.IDENTIFIER else 0
    row["address"] = fields.address if sample_type & abi.ADDR else 0
    row["data_source"] = fields.data_source if sample_type & abi.DATA_SRC else 0
    if sample_type & abi.READ:
        row["enabled_ns"], row["running_ns"] = fields.enabled_ns, fields.running_ns
        row["counts"][0, : len(fields.counts)] = fields.counts
    has_chain = sample_type & abi.CALLCHAIN
    if has_chain:
        row["frames"] = len(fields.chain)
        row["address"] = fields.chain[-1] if fields.chain else row["address"]
    if sample_type & abi.RAW and has_chain and not sample_type & abi.DATA_SRC:
        row["data_source"] = int.from_bytes(fields.padded_raw[24:32].ljust(8, b"\0"), "little")
        if len(fields.padded_raw) < 32:
            row["data_source"] = 0
    if sample_type & abi.RAW and not has_chain and len(fields.padded_raw) >= 4 + 5 * 8:
        words = struct.unpack_from("<5Q", fields.padded_raw, 4)
        row["ibs_op_data"], row["ibs_op_data3"] = words[2], words[4]
    if sample_type & abi.REGS_USER and fields.registers is not None:
        row["registers"][0] = fields.registers
        row["ip"] = fields.entered_ip if has_chain else fields.ip
    return row


WORD = st.integers(0, 2**64 - 1)
FIELDS = st.builds(
    SampleFields,
    ip=WORD,
    pid=st.integers(0, 2**32 - 1),
    tid=st.integers(0, 2**32 - 1),
    time_ns=WORD,
    event=WORD,
    address=WORD,
    enabled_ns=WORD,
    running_ns=WORD,
    counts=st.lists(WORD, min_size=1, max_size=5),
    raw=st.one_of(
        st.binary(max_size=60), st.builds(abi.IbsOp, WORD, WORD).map(lambda op: op.raw())
    ),
    registers=st.one_of(st.none(), st.lists(WORD, min_size=16, max_size=16)),
    data_source=WORD,
    chain=st.lists(WORD, max_size=17),
    entered_ip=WORD,
)


@pytest.mark.parametrize(
    "sample_type", [abi.ALWAYS, ALL, ALL ^ abi.DATA_SRC, CHAINLESS, LATER_WEIGHT]
)
@given(fields=st.lists(FIELDS, max_size=5))
def test_samples_come_out_as_they_went_in(sample_type: int, fields: list[SampleFields]) -> None:
    data = b"".join(each.record(sample_type) for each in fields)
    samples, events, lost, throttled = parse(data, sample_type)
    assert (events, lost, throttled) == ([], 0, 0)
    assert len(samples) == len(fields)
    for row, each in zip(samples, fields, strict=True):
        assert row == expected(each, sample_type)[0]


def test_every_combination_of_fields() -> None:
    op = abi.IbsOp(1 << 37, 1 << 17 | 1)
    fields = SampleFields(
        address=0x7FFF1234, enabled_ns=50, running_ns=40, raw=op.raw(), data_source=abi.STORE
    )
    assert len(COMBINATIONS) == 2**12
    for sample_type in COMBINATIONS:
        samples, _, lost, _ = parse(fields.record(sample_type) * 2, sample_type)
        assert lost == 0
        assert (samples == expected(fields, sample_type)[[0, 0]]).all(), hex(sample_type)


def test_other_records() -> None:
    kind = abi.ALWAYS | abi.IDENTIFIER | abi.CPU
    data = b"".join(
        (
            abi.born(kind, 10),
            abi.named(kind, b"a name", 11),
            abi.named(kind, b"\xff prog", 12, is_exec=True),
            abi.record(abi.LOST, struct.pack("<QQ", 99, 5) + abi.identity(kind, 13)),
            abi.record(abi.LOST_SAMPLES, struct.pack("<Q", 7) + abi.identity(kind, 14)),
            abi.record(abi.THROTTLE, struct.pack("<QQQ", 15, 99, 1234) + abi.identity(kind, 15)),
            abi.record(abi.UNTHROTTLE, struct.pack("<QQQ", 16, 99, 1234) + abi.identity(kind, 16)),
            abi.record(4711, b"of a later kernel"),
            abi.born(kind, 17, abi.EXIT),
        )
    )
    samples, events, lost, throttled = parse(data, kind)
    assert len(samples) == 0
    assert events == [
        ("fork", 7, 8, 6, 5, 10, ""),
        ("rename", 7, 8, 0, 0, 11, "a name"),
        ("exec", 7, 8, 0, 0, 12, "\udcff prog"),
        ("exit", 7, 8, 6, 5, 17, ""),
    ]
    assert (lost, throttled) == (12, 1)


def test_samples_of_the_kernel_are_not_of_the_program() -> None:
    """Those with a chain are all of the kernel: of what it was entered from they tell."""
    both = SampleFields(mode=abi.KERNEL), SampleFields(ip=5)
    samples, _, lost, _ = parse(b"".join(each.record(CHAINLESS) for each in both), CHAINLESS)
    assert samples["ip"].tolist() == [5]
    assert lost == 0
    samples, _, lost, _ = parse(b"".join(each.record(ALL) for each in both), ALL)
    assert samples["ip"].tolist() == [each.entered_ip for each in both]
    assert lost == 0


def test_records_that_wrap_round() -> None:
    """Wherever the first of them begins in the ring, and however often it has gone round."""
    fields = [SampleFields(ip=index, time_ns=index) for index in range(9)]
    flat = b"".join(each.record(CHAINLESS) for each in fields)
    size = 4096
    assert len(flat) < size
    for start in (*range(0, size, 8), 7 * size + 4088, 2**63):
        ring = bytearray(size)
        for offset, byte in enumerate(flat):
            ring[(start + offset) % size] = byte
        samples, _, lost, _ = parse(bytes(ring), CHAINLESS, start, start + len(flat))
        assert samples["ip"].tolist() == list(range(9)), start
        assert lost == 0


def test_records_that_are_cut_short() -> None:
    """The last one is lost, and said to be; those before it are not."""
    whole = SampleFields().record(CHAINLESS)
    for bytes_left in range(1, len(whole)):
        samples, _, lost, _ = parse(whole + whole[:bytes_left], CHAINLESS)
        assert (len(samples), lost) == (1, 1)
    # A record that says itself that it is too short for its fields does not hide the next one.
    for size in range(8, len(whole)):
        short = struct.pack("<IHH", abi.SAMPLE, abi.USER, size) + whole[8:size]
        samples, _, lost, _ = parse(short + whole, CHAINLESS)
        assert (len(samples), lost) == (1, 1)


def test_more_counts_than_anyone_asked_for() -> None:
    data = SampleFields(counts=range(6)).record(CHAINLESS) + SampleFields().record(CHAINLESS)
    samples, _, lost, _ = parse(data, CHAINLESS)
    assert (len(samples), lost) == (1, 1)


@settings(max_examples=500)
@given(data=st.binary(max_size=3000))
def test_any_bytes(data: bytes) -> None:
    perf_inputs.check(data)


@settings(max_examples=200)
@given(
    records=st.lists(FIELDS.map(lambda each: each.record(ALL)), min_size=1, max_size=4),
    damage=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4),
    tail=st.integers(0, 2**63 - 1),
)
def test_damaged_records(records: list[bytes], damage: list[tuple[int, int]], tail: int) -> None:
    ring = bytearray(b"".join(records))
    for place, byte in damage:
        ring[place % len(ring)] = byte
    perf_inputs.check(PerfInput(ALL, bytes(ring), tail).encode())


def test_inputs_that_fuzzing_begins_with() -> None:
    seeds = perf_inputs.seeds()
    assert len(seeds) == len(set(seeds)) > len(COMBINATIONS)
    for seed in seeds:
        assert PerfInput.decode(seed).encode() == seed
        perf_inputs.check(seed)


@pytest.mark.parametrize("number", range(4))
def test_inputs_as_fuzzing_makes_them(number: int) -> None:
    """Without its guidance (``make fuzz``), and fewer of them."""
    rng, seeds = random.Random(number), perf_inputs.seeds()
    for _ in range(10_000):
        perf_inputs.check(perf_inputs.changed(rng, seeds))


@pytest.mark.parametrize(
    "sample_type", [abi.IP | abi.TID, abi.ALWAYS | 1 << 11, abi.ALWAYS | 1 << 40]
)
def test_fields_that_cannot_be_read(sample_type: int) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        parse(b"", sample_type)


@pytest.mark.parametrize(("tail", "head"), [(0, 9), (5, 4), (2**64 - 1, 1)])
def test_positions_that_there_are_not(tail: int, head: int) -> None:
    with pytest.raises(ValueError, match="positions"):
        parse(bytes(8), abi.ALWAYS, tail, head)
