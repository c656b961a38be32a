"""Performance monitoring units that the kernel shows, and the events we would ask them for.

Encodings are umask << 8 | event, from intel/perfmon (``<CPU>/events/*_core.json``, 2026-08).
Only what ``memsampd doctor`` tries is here: no backend uses a PMU yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from memsampd.machines.machine import Cpu

# PMUs of CPU cores (cpu_core and cpu_atom on hybrid machines) and those that sample operations.
CORE_PMUS = ("cpu", "cpu_core", "cpu_atom")
IBS_OP = "ibs_op"
ARM_SPE = "arm_spe_0"
IBS_COUNT_MICRO_OPS = 1 << 19  # cnt_ctl
IBS_SOFTWARE_FILTER = 1 << 0  # swfilt, in config2: needed before exclude_kernel is accepted


@dataclass(frozen=True, slots=True)
class Pmu:
    """One unit under /sys/bus/event_source/devices.

    Attributes:
        name: its name there.
        type: what perf_event_attr.type must be.
        formats: names of the fields of its configuration.
    """

    name: str
    type: int
    formats: frozenset[str]


@dataclass(frozen=True, slots=True)
class MemoryEvents:
    """Retired loads and stores with data address, and conditional branches: raw encodings."""

    loads: int
    stores: int
    conditional_branches: int


_SKYLAKE = MemoryEvents(0x81D0, 0x82D0, 0x01C4)
# Not 0x01C4 here: from Ice Lake on that counts conditional branches taken only.
_ICE_LAKE = MemoryEvents(0x81D0, 0x82D0, 0x11C4)
_GRACEMONT = MemoryEvents(0x81D0, 0x82D0, 0x7EC4)

# Intel family 6 by display model.
INTEL_EVENTS: Mapping[int, MemoryEvents] = MappingProxyType(
    {
        0x3F: _SKYLAKE,  # Haswell server
        0x4F: _SKYLAKE,  # Broadwell server
        0x55: _SKYLAKE,  # Skylake and Cascade Lake server
        0x6A: _ICE_LAKE,  # Ice Lake server
        0x6C: _ICE_LAKE,
        0x8F: _ICE_LAKE,  # Sapphire Rapids
        0xCF: _ICE_LAKE,  # Emerald Rapids
        0xAD: _ICE_LAKE,  # Granite Rapids
        0xAE: _ICE_LAKE,
        0xAF: _GRACEMONT,  # Sierra Forest
    }
)


def read_pmus(sys_root: Path = Path("/sys")) -> tuple[Pmu, ...]:
    """The units that could observe user code: cores, IBS and SPE; empty where there is none."""
    found = []
    for name in (*CORE_PMUS, IBS_OP, ARM_SPE):
        folder = sys_root / "bus/event_source/devices" / name
        try:
            number = int((folder / "type").read_text())
        except (OSError, ValueError):
            continue
        formats = folder / "format"
        fields = frozenset(path.name for path in formats.iterdir()) if formats.is_dir() else ()
        found.append(Pmu(name, number, frozenset(fields)))
    return tuple(found)


def memory_events(cpu: Cpu) -> MemoryEvents | None:
    """Encodings for this CPU; None where we have none."""
    if cpu.vendor == "GenuineIntel" and cpu.family == 6:
        return INTEL_EVENTS.get(cpu.model)
    return None
