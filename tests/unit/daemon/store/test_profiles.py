"""What is kept of bursts and phases, and that nothing damaged or impossible is believed."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invented import burst_record

from memsampd.daemon.store.profiles import (
    PHASE_BURSTS,
    PROFILE_BURSTS,
    StoredBurst,
    chosen,
    code_set,
    pack_burst,
    pack_hits,
    unpack_burst,
    unpack_leader,
)
from memsampd.estimate.events import WindowRecord, code_bytes
from memsampd.exporters.frames import frame
from memsampd.exporters.recording.format import encode
from memsampd.phases.records import Leader
from memsampd.sampler.rates import TimedStretch
from memsampd.sampler.records import BurstCost

BINS = 128
BURST = msgspec.structs.replace(
    burst_record(2, 7, 3000, 2e8),
    code=code_bytes(np.arange(BINS, dtype=np.float64) % 3),
    timed_code=4,
)


def forged(**changes: Any) -> bytes:
    return frame(encode(msgspec.structs.replace(BURST, is_stored=True, **changes)))


def test_a_burst_is_kept_but_for_what_it_cost_and_where_it_was() -> None:
    kept = unpack_burst(pack_burst(BURST), BINS, is_same_cpu=True)
    assert kept.histogram() == BURST.histogram()
    assert (kept.code, kept.timed, kept.accesses) == (BURST.code, BURST.timed, BURST.accesses)
    assert (kept.instructions, kept.pages_missed) == (BURST.instructions, BURST.pages_missed)
    assert kept.is_stored
    assert (kept.cost, kept.tid, kept.timed_code) == (BurstCost(), 0, -1)
    elsewhere = unpack_burst(pack_burst(BURST), BINS, is_same_cpu=False)
    assert elsewhere.timed is None
    assert elsewhere.histogram() == BURST.histogram()


def test_a_part_of_a_burst_is_kept_as_a_burst() -> None:
    """The part before it may not be kept."""
    part = msgspec.structs.replace(BURST, part=2)
    assert unpack_burst(pack_burst(part), BINS, is_same_cpu=True).part == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"accesses": BURST.accesses + 1},
        {"bins": BURST.bins[:-4]},
        {"reuses": BURST.reuses[:-1]},
        {"reuses": b"\xff" * len(BURST.reuses)},
        {"censored": b"\xff\xff\xff\xff\xff\xff\xff\x7f" * (len(BURST.censored) // 8)},
        {"writes": BURST.rows + 1},
        {"writes": -1},
        {"rows": 1 << 50},
        {"instructions": -5},
        {"pages_missed": BURST.rows + 1},
        {"code": BURST.code[:-2]},
        {"timed": TimedStretch(100, 0.0, "x")},
        {"timed": TimedStretch(100, float("nan"), "x")},
        {"timed": TimedStretch(100, float("inf"), "x")},
        {"timed": TimedStretch(100, -1.0, "x")},
        {"timed": TimedStretch(-100, 1.0, "x")},
        {"timed": TimedStretch(10**18, 1.0, "x")},
        {"timed": TimedStretch(10**8, 1.0, "x", error=float("nan"))},
        {"timed": TimedStretch(10**8, 1.0, "x", error=-1.0)},
    ],
    ids=str,
)
def test_what_no_burst_can_say_is_refused(changes: dict[str, Any]) -> None:
    assert unpack_burst(forged(), BINS, is_same_cpu=True).is_stored
    kept = forged(**changes)
    with pytest.raises(ValueError, match=r"\w"):
        unpack_burst(kept, BINS, is_same_cpu=True)


def test_other_records_are_refused() -> None:
    window = WindowRecord(index=0, start_seconds=0, end_seconds=1, cpu_seconds=1, phase=0)
    for kept in (frame(encode(window)), frame(encode(BURST)), b"", pack_burst(BURST) + b"x"):
        with pytest.raises(ValueError, match=r"\w"):
            unpack_burst(kept, BINS, is_same_cpu=True)


@given(st.integers(0, len(pack_burst(BURST)) - 1), st.integers(1, 255), st.booleans())
def test_damage_is_found(at: int, change: int, cut: bool) -> None:
    kept = bytearray(pack_burst(BURST))
    kept[at] ^= change
    with pytest.raises(ValueError, match=r"\w"):
        unpack_burst(bytes(kept[:at] if cut else kept), BINS, is_same_cpu=True)


@given(st.binary(max_size=200))
def test_nonsense_is_refused(frame: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        unpack_burst(frame, BINS, is_same_cpu=True)


LEADER = Leader(3, np.array([0.0, 2.5, 7.0]), 2.0, 9)


def test_a_phase_is_kept() -> None:
    kept = unpack_leader(3, pack_hits(LEADER), 2.0, 9, bins=3)
    assert (kept.phase, kept.remembered, kept.windows) == (3, 2.0, 9)
    assert np.array_equal(kept.hits, LEADER.hits)


@pytest.mark.parametrize(
    "changes",
    [
        {"phase": -1},
        {"hits": pack_hits(LEADER)[:-1]},
        {"hits": zlib.compress(LEADER.hits.tobytes()[:-8])},
        {"hits": zlib.compress(LEADER.hits.tobytes() + b"\0")},
        {"hits": zlib.compress(bytes(1 << 20))},
        {"hits": LEADER.hits.tobytes()},
        {"hits": zlib.compress(np.array([0.0, np.nan, 1.0]).tobytes())},
        {"hits": zlib.compress(np.array([0.0, -1.0, 9.0]).tobytes())},
        {"hits": zlib.compress(np.array([0.0, np.inf, 1.0]).tobytes())},
        {"hits": zlib.compress(np.zeros(3).tobytes())},
        {"hits": zlib.compress(np.full(3, 1e300).tobytes())},
        {"remembered": 0.0},
        {"remembered": float("nan")},
        {"windows": 0},
        {"windows": 1 << 60},
    ],
    ids=str,
)
def test_what_no_phase_can_say_is_refused(changes: dict[str, Any]) -> None:
    good = {"phase": 3, "hits": pack_hits(LEADER), "remembered": 2.0, "windows": 9}
    with pytest.raises(ValueError, match=r"\w"):
        unpack_leader(**{**good, **changes}, bins=3)


bursts = st.lists(
    st.builds(
        StoredBurst,
        phase=st.integers(0, 9),
        taken_unix_seconds=st.floats(0, 1e9),
        accesses=st.integers(0, 10**6),
        frame=st.just(b""),
        code=st.integers(0, 255),
    ),
    max_size=200,
)


@given(bursts)
def test_of_each_phase_the_latest_and_the_longest_are_kept(all_bursts: list[StoredBurst]) -> None:
    kept = chosen(all_bursts)
    assert len(kept) <= PROFILE_BURSTS
    assert list(kept) == sorted(kept, key=lambda each: each.taken_unix_seconds)
    for phase in {each.phase for each in all_bursts}:
        mine = [each for each in kept if each.phase == phase]
        theirs = [each for each in all_bursts if each.phase == phase]
        assert 1 <= len(mine) <= PHASE_BURSTS
        if len(mine) > 1:
            latest = max(theirs, key=lambda each: each.taken_unix_seconds)
            assert latest in mine
            assert max(each.accesses for each in mine) == max(each.accesses for each in theirs)
    if len(all_bursts) <= PHASE_BURSTS:
        assert sorted(kept, key=repr) == sorted(all_bursts, key=repr)


def test_rare_code_that_one_burst_ran_is_kept() -> None:
    usual = [StoredBurst(0, float(at), 200_000, b"", 0b1) for at in range(60)]
    rare = [replace(usual[at], code=1 << at) for at in (3, 8)]
    kept = chosen([*usual[:3], rare[0], *usual[4:8], rare[1], *usual[9:]])
    assert kept[:2] == tuple(rare)
    assert len(kept) == PHASE_BURSTS


def test_code_is_a_set_of_bins() -> None:
    vector = np.zeros(4096)
    assert code_set(msgspec.structs.replace(BURST, code=code_bytes(vector))) == 0
    vector[[5, 4000]] = 3
    one = code_set(msgspec.structs.replace(BURST, code=code_bytes(vector)))
    vector[5] = 0
    assert one.bit_count() == 2
    assert (
        one & code_set(msgspec.structs.replace(BURST, code=code_bytes(vector)))
    ).bit_count() == 1
