"""Events of each CPU, by tables of names and on fake sysfs trees."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

from memsampd.machines.machine import Cpu
from memsampd.machines.pmu import (
    IBS_COUNT_MICRO_OPS,
    IBS_SOFTWARE_FILTER,
    EventPlan,
    Pmu,
    core_events,
    core_of,
    plan_events,
    read_pmus,
)

DEVICES = "bus/event_source/devices"

# Names of intel/perfmon (2026-08) by model: conditional branches, loads, stores, and those sampled
# with a data address (Data_LA), "" where there are none. CPUs whose events differ in no number
# share a line.
INTEL = {
    (0x1A, 0x1E, 0x2E, 0x25, 0x2C, 0x2F): (
        ("BR_INST_RETIRED.CONDITIONAL", 0x01C4),
        ("MEM_INST_RETIRED.LOADS", 0x010B),
        ("MEM_INST_RETIRED.STORES", 0x020B),
        ("MEM_INST_RETIRED.LATENCY_ABOVE_THRESHOLD_0", 0x100B),
        ("", 0),
    ),
    (0x2A, 0x2D, 0x3A, 0x3E): (
        ("BR_INST_RETIRED.CONDITIONAL", 0x01C4),
        ("MEM_UOPS_RETIRED.ALL_LOADS", 0x81D0),
        ("MEM_UOPS_RETIRED.ALL_STORES", 0x82D0),
        ("MEM_TRANS_RETIRED.LOAD_LATENCY_GT_4", 0x01CD),
        ("MEM_TRANS_RETIRED.PRECISE_STORE", 0x02CD),
    ),
    (0x3C, 0x45, 0x46, 0x3F, 0x3D, 0x47, 0x4F, 0x56): (
        ("BR_INST_RETIRED.CONDITIONAL", 0x01C4),
        ("MEM_UOPS_RETIRED.ALL_LOADS", 0x81D0),
        ("MEM_UOPS_RETIRED.ALL_STORES", 0x82D0),
        ("MEM_UOPS_RETIRED.ALL_LOADS", 0x81D0),
        ("MEM_UOPS_RETIRED.ALL_STORES", 0x82D0),
    ),
    (0x4E, 0x5E, 0x8E, 0x9E, 0xA5, 0xA6, 0x55): (
        ("BR_INST_RETIRED.CONDITIONAL", 0x01C4),
        ("MEM_INST_RETIRED.ALL_LOADS", 0x81D0),
        ("MEM_INST_RETIRED.ALL_STORES", 0x82D0),
        ("MEM_INST_RETIRED.ALL_LOADS", 0x81D0),
        ("MEM_INST_RETIRED.ALL_STORES", 0x82D0),
    ),
    (0x7D, 0x7E, 0xA7, 0x8C, 0x8D, 0x6A, 0x6C, 0x8F, 0xCF, 0xAD, 0xAE): (
        ("BR_INST_RETIRED.COND", 0x11C4),
        ("MEM_INST_RETIRED.ALL_LOADS", 0x81D0),
        ("MEM_INST_RETIRED.ALL_STORES", 0x82D0),
        ("MEM_INST_RETIRED.ALL_LOADS", 0x81D0),
        ("MEM_INST_RETIRED.ALL_STORES", 0x82D0),
    ),
    (0x5C, 0x5F, 0x7A, 0x86, 0x96, 0x9C, 0xAF, 0xB6, 0xBE): (
        ("BR_INST_RETIRED.JCC or COND", 0x7EC4),
        ("MEM_UOPS_RETIRED.ALL_LOADS", 0x81D0),
        ("MEM_UOPS_RETIRED.ALL_STORES", 0x82D0),
        ("MEM_UOPS_RETIRED.ALL_LOADS", 0x81D0),
        ("MEM_UOPS_RETIRED.ALL_STORES", 0x82D0),
    ),
    (0xDD,): (
        ("BR_INST_RETIRED.COND", 0x07C4),
        ("MEM_UOPS_RETIRED.ALL_LOADS", 0x81D0),
        ("MEM_UOPS_RETIRED.ALL_STORES", 0x82D0),
        ("MEM_UOPS_RETIRED.LOAD_LATENCY", 0x05D0),
        ("MEM_UOPS_RETIRED.STORE_LATENCY", 0x06D0),
    ),
}
# Models of hybrids: branches of cpu_core and cpu_atom, and loads sampled there.
HYBRIDS = {
    (0x97, 0x9A, 0xB7, 0xBA, 0xBF, 0xAA, 0xAC, 0xB5, 0xC5, 0xC6, 0xBD): (0x11C4, 0x7EC4, 0x81D0),
    (0xCC, 0xD5, 0xE5): (0x07C4, 0x07C4, 0x05D0),
}
CPU = Pmu("cpu", 4, frozenset({"event", "umask"}))
IBS = Pmu("ibs_op", 11, frozenset({"cnt_ctl", "swfilt"}))


def intel(model: int) -> Cpu:
    return Cpu("x86_64", "GenuineIntel", 6, model, 1, "an Intel", "cpuinfo")


def amd(family: int) -> Cpu:
    return Cpu("x86_64", "AuthenticAMD", family, 1, 1, "an AMD", "cpuinfo")


@pytest.mark.parametrize(
    ("model", "names"), [(model, names) for models, names in INTEL.items() for model in models]
)
def test_events_of_intel(model: int, names: tuple[tuple[str, int], ...]) -> None:
    plan = plan_events(intel(model), [CPU], "6.18")
    branches, loads, stores, sampled_loads, sampled_stores = (number for _, number in names)
    assert [event.config for event in plan.branches] == [branches]
    assert [[event.config for event in kind[:2]] for kind in plan.counters] == [[loads, stores]]
    sampled = [number for number in (sampled_loads, sampled_stores) if number]
    assert [event.config for event in plan.addresses] == sampled
    assert {event.type for event in (*plan.branches, *plan.addresses)} == {4}
    assert bool(plan.missing) is (not sampled_stores)


@pytest.mark.parametrize("model", [model for models in HYBRIDS for model in models])
def test_events_of_hybrids(model: int) -> None:
    core = Pmu("cpu_core", 4, frozenset(), frozenset({0, 1}))
    atom = Pmu("cpu_atom", 10, frozenset(), frozenset({2, 3}))
    plan = plan_events(intel(model), [core, atom], "6.18")
    big, small, sampled = next(numbers for models, numbers in HYBRIDS.items() if model in models)
    assert [(event.type, event.config, event.cpus) for event in plan.branches] == [
        (4, big, core.cpus),
        (10, small, atom.cpus),
    ]
    # A generic event is told which unit is meant by the upper half of its number.
    assert [kind[2].config for kind in plan.counters] == [4 << 32 | 1, 10 << 32 | 1]
    assert next(event.config for event in plan.addresses if event.type == 10) == sampled


def test_loads_by_latency_have_the_least_threshold() -> None:
    for model in (0x1A, 0x2A, 0xDD):
        loads = plan_events(intel(model), [CPU], "6.18").addresses[0]
        assert loads.config1 == 3
    assert plan_events(intel(0x8F), [CPU], "6.18").addresses[0].config1 == 0


def test_loads_that_need_an_auxiliary_event() -> None:
    """Sapphire Rapids has it for loads by latency only, which are not what is sampled there."""
    auxiliary = Pmu("cpu", 4, frozenset(), needs_load_auxiliary=True)
    assert len(plan_events(intel(0x8F), [auxiliary], "6.18").addresses) == 2
    plan = plan_events(intel(0x2A), [auxiliary], "6.18")
    assert [event.config for event in plan.addresses] == [0x02CD]
    assert "auxiliary" in plan.missing[0]


@pytest.mark.parametrize("family", [0x17, 0x19, 0x1A])
def test_events_of_amd(family: int) -> None:
    plan = plan_events(amd(family), [CPU, IBS], "6.2.0")
    (op,) = plan.addresses
    assert plan.branches == (op,)
    assert (op.type, op.config, op.config2) == (11, IBS_COUNT_MICRO_OPS, IBS_SOFTWARE_FILTER)
    assert (op.period_step, op.excludes_kernel, op.is_ibs) == (16, True, True)
    # ls_dispatch: load_dispatch, store_dispatch and ld_st_dispatch, which is both.
    assert [event.config for event in plan.counters[0][:2]] == [0x0529, 0x0629]
    assert plan.is_speculative


def test_ibs_without_what_it_needs() -> None:
    old = plan_events(amd(0x19), [CPU, IBS], "6.1.0-9")
    assert not old.addresses
    assert "6.2" in old.missing[0]
    unfiltered = plan_events(amd(0x19), [CPU, Pmu("ibs_op", 11, frozenset())], "6.8")
    assert not unfiltered.addresses[0].excludes_kernel
    assert unfiltered.addresses[0].config2 == 0


def test_machines_without_events() -> None:
    assert "no PMU" in plan_events(intel(0x8F), [], "6.18").missing[0]
    for cpu in (intel(0xFF), Cpu("x86_64", "GenuineIntel", 15, 0x8F, 1, "", "none"), amd(0x10)):
        plan = plan_events(cpu, [CPU], "6.18")
        assert plan == EventPlan(missing=("cpu: no events are known for this processor",))


def test_the_table_is_used_to_the_last_line() -> None:
    """Each kind of core is some model's, and no model is in two lines."""
    cpus = [intel(model) for model in range(0x100)] + [amd(family) for family in range(0x20)]
    units = ("cpu", "cpu_core", "cpu_atom", "cpu_lowpower")
    used = {core_of(cpu, unit) for cpu in cpus for unit in units}
    table = tomllib.loads((files("memsampd.machines") / "pmu_events.toml").read_text())
    assert used - {None} == set(table["cores"])
    assert core_events("skylake").branches == 0x01C4


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_units_in_sysfs(tmp_path: Path) -> None:
    write(tmp_path, f"{DEVICES}/cpu_core/type", "4\n")
    write(tmp_path, f"{DEVICES}/cpu_core/cpus", "0-3\n")
    write(tmp_path, f"{DEVICES}/cpu_core/caps/max_precise", "3\n")
    write(tmp_path, f"{DEVICES}/cpu_core/events/mem-loads-aux", "event=0x03,umask=0x82\n")
    write(tmp_path, f"{DEVICES}/cpu_atom/type", "10\n")
    write(tmp_path, f"{DEVICES}/cpu_atom/cpus", "4-7\n")
    write(tmp_path, f"{DEVICES}/ibs_op/type", "11\n")
    write(tmp_path, f"{DEVICES}/ibs_op/format/swfilt", "config2:0\n")
    write(tmp_path, f"{DEVICES}/uprobe/type", "8\n")
    write(tmp_path, f"{DEVICES}/cpu/type", "odd\n")
    assert read_pmus(tmp_path) == (
        Pmu("cpu_core", 4, frozenset(), frozenset(range(4)), 3, True),
        Pmu("cpu_atom", 10, frozenset(), frozenset(range(4, 8))),
        Pmu("ibs_op", 11, frozenset({"swfilt"})),
    )
    assert read_pmus(tmp_path / "nothing") == ()


def test_precise_levels_are_those_of_the_unit() -> None:
    told = Pmu("cpu", 4, frozenset(), most_precise=2)
    assert plan_events(intel(0x8F), [told], "6.18").branches[0].precise_level == 2
    assert plan_events(intel(0x8F), [CPU], "6.18").branches[0].precise_level == 3
