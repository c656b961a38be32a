"""Advice on curves whose answer is known."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from memsampd.errors import UsageError
from memsampd.exporters.advice import Advice, advise, groups_of
from memsampd.exporters.advice_text import to_document, to_text
from memsampd.exporters.demand import Program, advice_sizes, demands_of
from memsampd.machines.resctrl import DividedCache
from memsampd.models.corun import Demand
from memsampd.models.records import MissRatioCurve

MIB = 1 << 20
CACHE = DividedCache("L3", 16 * MIB, 16, 1, None, (0,), (0, 1), "sysfs")
SIZES = advice_sizes(CACHE.size_bytes)


def cliff(at_mib: float, before: float = 0.4, after: float = 0.001, band: float = 0.0) -> Demand:
    row = np.where(at_mib * MIB > SIZES, before, after)
    curve = MissRatioCurve(
        SIZES, row, np.clip(row - band, 0, 1), np.clip(row + band, 0, 1), "lru", 64, 1000
    )
    return Demand(1.0, 1e8, 0.0, curve)


def program(pid: int, *demands: Demand, cpus: float = 1.0) -> Program:
    return Program(f"p{pid}", pid, 7, cpus, demands, 1.0)


STREAM = program(1, cliff(1000))  # gains nothing from any cache
LOOP = program(2, cliff(8))  # fits into eight ways
SMALL = program(3, cliff(0.5))  # fits into one


def test_a_stream_is_kept_away_from_a_loop() -> None:
    advice = advise([STREAM, LOOP, SMALL], CACHE, "misses")
    assert advice.division is not None
    ways = {portion.programs[0].pid: portion.ways for portion in advice.division.portions}
    assert ways[2] >= 8
    assert sum(ways.values()) == 16
    assert advice.division.is_known_to_help
    assert advice.division.divided.expected < advice.division.undivided.expected
    assert {program.pid for program in advice.pairs[0].programs} == {1, 2}


def test_portions_do_not_overlap_and_fill_the_cache() -> None:
    masks = [
        int(group.schemata.removeprefix("L3:0="), 16)
        for group in groups_of(advise([STREAM, LOOP, SMALL], CACHE, "misses"))
    ]
    assert sum(masks) == (1 << 16) - 1
    assert all(one & other == 0 for one, other in pairwise(masks))


def test_fairness_serves_the_worst_off() -> None:
    heavy = program(4, *[cliff(6, before=0.9)])
    light = program(5, *[cliff(12, before=0.1)])
    advice = advise([heavy, light], CACHE, "fairness")
    assert advice.division is not None
    assert advice.division.portions[0].ways >= 6


def test_what_the_curves_cannot_tell_is_said() -> None:
    vague = [program(1, cliff(1000, band=0.4)), program(2, cliff(8, band=0.4))]
    advice = advise(vague, CACHE, "misses")
    assert advice.division is not None
    assert not advice.division.is_known_to_help
    assert "not known to save misses" in to_text(advice)


def test_more_programs_than_groups_share_the_last_one() -> None:
    cache = DividedCache("L3", 16 * MIB, 16, 2, 2, (0,), (), "resctrl")
    advice = advise([STREAM, LOOP, SMALL], cache, "misses")
    assert advice.division is not None
    assert sorted(len(portion.programs) for portion in advice.division.portions) == [1, 2]
    assert groups_of(advice)[-1].pids in [(1, 3), (3, 1)]


def test_a_program_without_a_curve_is_left_out_and_named() -> None:
    advice = advise([LOOP, STREAM, program(9)], CACHE, "misses")
    assert [program.pid for program in advice.left_out] == [9]
    assert "p9 (9) is left out" in to_text(advice)


def test_nothing_known_is_an_error() -> None:
    with pytest.raises(UsageError, match="observe them for longer"):
        advise([program(9)], CACHE, "misses")


def test_one_program_needs_no_division() -> None:
    advice = advise([LOOP], CACHE, "misses")
    assert advice.division is None
    assert groups_of(advice) == []
    assert "nothing to divide" in to_text(advice)


def test_time_without_a_curve_is_unknown() -> None:
    half = Program("half", 6, 7, 1.0, (Demand(0.5, 1e8, 0.0, cliff(8).curve),), 0.5)
    text = to_text(advise([half, STREAM], CACHE, "misses"))
    assert "nothing is known of 50% of its CPU time" in text
    assert "modelled, within a factor of two or so, for 50% of its CPU time" in text


def test_the_document_holds_what_the_text_says() -> None:
    advice: Advice = advise([STREAM, LOOP, SMALL], CACHE, "misses")
    document = json.loads(json.dumps(to_document(advice)))
    assert document["version"] == 1
    assert [portion["ways"] for portion in document["division"]["portions"]] == [
        portion.ways
        for portion in advice.division.portions  # type: ignore[union-attr]
    ]
    for portion in document["division"]["portions"]:
        assert portion["schemata"] in to_text(advice)
    assert len(document["pairs"]) == 3


def test_an_idle_program_is_left_out() -> None:
    idle = program(8, Demand(1.0, 0.0, 0.0, cliff(8).curve), cpus=0.0)
    assert "p8 (8) is left out: it is idle" in to_text(advise([idle, LOOP], CACHE, "fairness"))


def test_demands_are_phases_with_curve_and_rate() -> None:
    from invented import make_snapshot

    estimate = make_snapshot(3).estimate
    demands = demands_of(estimate, cpus=2.0)
    known = [phase for phase in estimate.phases if phase.curves]
    assert 0 < len(demands) <= len(known) < len(estimate.phases)
    assert sum(demand.share for demand in demands) < 1


def test_twenty_programs_share_what_groups_there_are() -> None:
    many = [program(pid, cliff(0.1 * pid), cliff(2, before=0.1)) for pid in range(1, 21)]
    many = [
        Program(one.name, one.pid, 7, 1.0, tuple(replace(d, share=0.5) for d in one.demands), 1.0)
        for one in many
    ]
    cache = DividedCache("L3", 16 * MIB, 16, 1, 15, (0, 1), (), "resctrl")
    advice = advise(many, cache, "misses")
    assert advice.division is not None
    assert len(advice.division.portions) == 15
    assert {pid for group in groups_of(advice) for pid in group.pids} == set(range(1, 21))
    assert len(advice.pairs) == 16 * 15 / 2
    text = to_text(advice)
    assert "not known: pairs of the 4 programs" in text
    assert "of 2 such caches" in text
