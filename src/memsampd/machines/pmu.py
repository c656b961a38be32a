"""Performance monitoring units that the kernel shows, and the events to ask them for.

Which events there are is data: ``pmu_events.toml``, by the CPU's model. What a unit can do is read
from sysfs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from memsampd import _core
from memsampd.machines.cpulist import parse_cpu_list
from memsampd.machines.kernel import parse_release
from memsampd.machines.machine import Cpu

# Units of CPU cores (one a kind of core on hybrid machines) and those that sample operations.
CORE_PMUS = ("cpu", "cpu_core", "cpu_atom", "cpu_lowpower")
IBS_OP = "ibs_op"
ARM_SPE = "arm_spe_0"
IBS_COUNT_MICRO_OPS = 1 << 19  # cnt_ctl
IBS_SOFTWARE_FILTER = 1 << 0  # swfilt, in config2: needed before exclude_kernel is accepted
_IBS_PERIOD_STEP = 16
_IBS_OF_PROCESSES = (6, 2)  # Linux: before, IBS sampled whole CPUs only
_MOST_PRECISE = 3


class Pmu(msgspec.Struct, frozen=True):
    """One unit under /sys/bus/event_source/devices.

    Attributes:
        name: its name there.
        type: what perf_event_attr.type must be.
        formats: names of the fields of its configuration.
        cpus: CPUs that have it; empty: all.
        most_precise: the highest precise level that it says it has; None: it does not say.
        needs_load_auxiliary: its loads by latency are sampled only beside an auxiliary event.
    """

    name: str
    type: int
    formats: frozenset[str]
    cpus: frozenset[int] = frozenset()
    most_precise: int | None = None
    needs_load_auxiliary: bool = False


class CoreEvents(msgspec.Struct, frozen=True):
    """Events of one kind of core: see pmu_events.toml, which has the same names."""

    branches: int
    loads: int
    stores: int
    sampled_loads: int | None = None
    sampled_stores: int | None = None
    sampled_branches: int | None = None
    load_latency: int = 0
    is_speculative: bool = False


class HardwareEvent(msgspec.Struct, frozen=True):
    """How one event is asked for: what perf_event_attr is filled with.

    Attributes:
        name: for people: its unit and what it counts ("cpu loads 0x81d0").
        type: unit.
        config: encoding.
        config1: further bits.
        config2: further bits.
        precise_level: the highest precise_ip to try.
        period_step: periods must be multiples of it.
        excludes_kernel: whether the unit can leave out the kernel; if not, we do.
        cpus: CPUs that have the unit; empty: all.
        is_ibs: it samples operations (AMD): their registers are in the raw part of a sample, and no
            counters are read along with it.
        bp_type: of a breakpoint event, which stands in for others in tests.
        filter: of a tracepoint: which of its events count.
    """

    name: str
    type: int
    config: int
    config1: int = 0
    config2: int = 0
    precise_level: int = 0
    period_step: int = 1
    excludes_kernel: bool = True
    cpus: frozenset[int] = frozenset()
    is_ibs: bool = False
    bp_type: int = 0
    filter: str = ""


class EventPlan(msgspec.Struct, frozen=True):
    """The events of a machine: one a kind of core in each, in the same order.

    Attributes:
        branches: conditional branches retired, sampled; on AMD all micro-ops.
        counters: loads, stores, instructions and cycles of each kind of core.
        addresses: loads and stores, sampled with their data addresses.
        is_speculative: loads and stores that were thrown away again are counted, too.
        missing: what there is none of, and why, a sentence each.
    """

    branches: tuple[HardwareEvent, ...] = ()
    counters: tuple[tuple[HardwareEvent, HardwareEvent, HardwareEvent, HardwareEvent], ...] = ()
    addresses: tuple[HardwareEvent, ...] = ()
    is_speculative: bool = False
    missing: tuple[str, ...] = ()


@cache
def _table() -> dict[str, Any]:
    import tomllib  # where there is a PMU

    return tomllib.loads((Path(__file__).parent / "pmu_events.toml").read_text())


def core_events(core: str) -> CoreEvents:
    """Events of one kind of core."""
    return CoreEvents(**_table()["cores"][core])


def core_of(cpu: Cpu, pmu: str) -> str | None:
    """The kind of core behind a unit of this CPU; None where the table has none."""
    table = _table()
    if cpu.vendor in ("AuthenticAMD", "HygonGenuine"):
        families: Mapping[str, Sequence[int]] = table["amd"]
        return next((core for core, among in families.items() if cpu.family in among), None)
    if cpu.vendor != "GenuineIntel" or cpu.family != 6:
        return None
    for hybrid in table["intel"]["hybrids"]:
        if cpu.model in hybrid["models"]:
            # Where some cores are switched off, or hidden, the unit is called as on others.
            core: str | None = hybrid.get("cpu_core" if pmu == "cpu" else pmu)
            return core
    models: Mapping[str, Sequence[int]] = table["intel"]["models"]
    return next((core for core, among in models.items() if cpu.model in among), None)


def read_pmus(sys_root: Path = Path("/sys")) -> tuple[Pmu, ...]:
    """The units that could observe user code: cores, IBS and SPE; empty where there is none."""
    devices = sys_root / "bus/event_source/devices"
    found = [_read_pmu(devices / name) for name in (*CORE_PMUS, IBS_OP, ARM_SPE)]
    return tuple(pmu for pmu in found if pmu is not None)


def _read_pmu(folder: Path) -> Pmu | None:
    number = _read_number(folder / "type")
    if number is None:
        return None
    formats = folder / "format"
    return Pmu(
        folder.name,
        number,
        frozenset(path.name for path in formats.iterdir()) if formats.is_dir() else frozenset(),
        _read_cpus(folder / "cpus"),
        _read_number(folder / "caps/max_precise"),
        (folder / "events/mem-loads-aux").exists(),
    )


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _read_cpus(path: Path) -> frozenset[int]:
    try:
        return frozenset(parse_cpu_list(path.read_text()))
    except (OSError, ValueError):
        return frozenset()


def plan_events(cpu: Cpu, pmus: Iterable[Pmu], release: str) -> EventPlan:
    """Choose this machine's events.

    Args:
        cpu: the processor.
        pmus: its units.
        release: of the kernel, as uname(2) says.
    """
    pmus = tuple(pmus)
    plan = EventPlan()
    for pmu in pmus:
        if pmu.name in CORE_PMUS:
            plan = _with_core(plan, pmu, core_of(cpu, pmu.name))
        elif pmu.name == IBS_OP:
            plan = _with_ibs(plan, pmu, release)
    if not pmus:
        plan = replace(plan, missing=("the kernel shows no PMU (a virtual machine mostly)",))
    return plan


def _with_core(plan: EventPlan, pmu: Pmu, core: str | None) -> EventPlan:
    if core is None:
        why = f"{pmu.name}: no events are known for this processor"
        return replace(plan, missing=(*plan.missing, why))
    events = core_events(core)
    most = _MOST_PRECISE if pmu.most_precise is None else min(pmu.most_precise, _MOST_PRECISE)

    def event(what: str, config: int, config1: int = 0) -> HardwareEvent:
        name = f"{pmu.name} {what} {config:#06x}"
        return HardwareEvent(name, pmu.type, config, config1, precise_level=most, cpus=pmu.cpus)

    branches = events.branches if events.sampled_branches is None else events.sampled_branches
    loads = events.loads if events.sampled_loads is None else events.sampled_loads
    stores = events.stores if events.sampled_stores is None else events.sampled_stores
    missing = []
    if loads and pmu.needs_load_auxiliary and events.load_latency:
        missing.append(f"{pmu.name}: its loads need an auxiliary event, which is not supported")
        loads = 0
    if not stores and not events.is_speculative:
        missing.append(f"{pmu.name}: stores have no data address in samples")
    sampled = [event("sampled loads", loads, events.load_latency)] if loads else []
    sampled += [event("sampled stores", stores)] if stores else []
    counters = (
        event("loads", events.loads),
        event("stores", events.stores),
        _generic(pmu, "instructions", _core.PERF_COUNT_HW_INSTRUCTIONS),
        _generic(pmu, "cycles", _core.PERF_COUNT_HW_CPU_CYCLES),
    )
    followed = [event("conditional branches", branches)] if branches else []
    return replace(
        plan,
        branches=(*plan.branches, *followed),
        counters=(*plan.counters, counters),
        addresses=(*plan.addresses, *sampled),
        is_speculative=plan.is_speculative or events.is_speculative,
        missing=(*plan.missing, *missing),
    )


def _generic(pmu: Pmu, name: str, number: int) -> HardwareEvent:
    # PERF_TYPE_HARDWARE carries the unit in its upper half (Linux 5.13, for hybrid machines).
    unit = 0 if pmu.name == "cpu" else pmu.type << 32
    kind = _core.PERF_TYPE_HARDWARE
    return HardwareEvent(f"{pmu.name} {name}", kind, number | unit, cpus=pmu.cpus)


def _with_ibs(plan: EventPlan, pmu: Pmu, release: str) -> EventPlan:
    if parse_release(release) < _IBS_OF_PROCESSES:
        why = f"ibs_op: samples single processes from Linux 6.2 on, this is {release}"
        return replace(plan, missing=(*plan.missing, why))
    can_filter = "swfilt" in pmu.formats
    event = HardwareEvent(
        "ibs_op micro-ops",
        pmu.type,
        IBS_COUNT_MICRO_OPS,
        config2=IBS_SOFTWARE_FILTER if can_filter else 0,
        period_step=_IBS_PERIOD_STEP,
        excludes_kernel=can_filter,
        cpus=pmu.cpus,
        is_ibs=True,
    )
    return replace(plan, branches=(*plan.branches, event), addresses=(*plan.addresses, event))
