"""This machine: its CPU and its caches."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path

import msgspec

from memsampd import _core
from memsampd.machines.caches import Cache, CpuidFunction, read_caches
from memsampd.machines.cpulist import online_cpus


class Cpu(msgspec.Struct, frozen=True):
    """The processor. A field that nothing tells is empty or 0.

    Attributes:
        architecture: as uname(2) says ("x86_64").
        vendor: "GenuineIntel", "AuthenticAMD", ...
        family: display family.
        model: display model.
        stepping: stepping.
        name: the name that it gives itself.
        source: where vendor to name come from: "cpuinfo", "cpuid" or "none".
    """

    architecture: str
    vendor: str
    family: int
    model: int
    stepping: int
    name: str
    source: str


class Machine(msgspec.Struct, frozen=True):
    """What the models and the doctor want to know of the hardware.

    Attributes:
        cpu: the processor.
        cpus: numbers of the CPUs that are online.
        caches: each once, by level.
    """

    cpu: Cpu
    cpus: tuple[int, ...]
    caches: tuple[Cache, ...]

    def cache_sizes_bytes(self, cpu: int | None = None) -> Mapping[str, int]:
        """Sizes of the data and unified caches that a CPU sees, by name ("L1d", "L2", ...).

        Args:
            cpu: the CPU; None: the first that is online (CPUs of a hybrid machine differ).
        """
        cpu = self.cpus[0] if cpu is None else cpu
        return {
            cache.name: cache.size_bytes
            for cache in self.caches
            if cache.kind != "instruction" and (not cache.shared_cpus or cpu in cache.shared_cpus)
        }


def native_cpuid(leaf: int, subleaf: int) -> tuple[int, int, int, int] | None:
    """CPUID of this machine; None on other than x86 or beyond its last leaf."""
    return _core.cpuid(leaf, subleaf)


def read_machine(
    root: Path = Path("/"),
    cpuid: CpuidFunction = native_cpuid,
    architecture: str | None = None,
) -> Machine:
    """Describe this machine.

    Args:
        root: where proc and sys are mounted.
        cpuid: the CPUID instruction.
        architecture: as uname(2) says; the running one by default.
    """
    try:
        cpus = online_cpus(root / "sys")
    except OSError:
        cpus = tuple(range(os.cpu_count() or 1))
    cpu = _read_cpu(root / "proc/cpuinfo", cpuid, architecture or os.uname().machine)
    return Machine(cpu, cpus, read_caches(cpus, root / "sys", cpuid))


def _read_cpu(cpuinfo: Path, cpuid: CpuidFunction, architecture: str) -> Cpu:
    try:
        first = cpuinfo.read_text().partition("\n\n")[0]
    except OSError:
        first = ""
    fields = {
        name.strip(): value.strip()
        for name, _, value in (line.partition(":") for line in first.splitlines())
    }
    if "vendor_id" in fields:
        return Cpu(
            architecture,
            fields["vendor_id"],
            int(fields.get("cpu family", 0)),
            int(fields.get("model", 0)),
            int(fields["stepping"]) if fields.get("stepping", "").isdigit() else 0,
            fields.get("model name", ""),
            "cpuinfo",
        )
    return _cpu_from_cpuid(cpuid, architecture)


def _cpu_from_cpuid(cpuid: CpuidFunction, architecture: str) -> Cpu:
    first, signature = cpuid(0, 0), cpuid(1, 0)
    if first is None or signature is None:
        return Cpu(architecture, "", 0, 0, 0, "", "none")
    _, ebx, ecx, edx = first
    family, model, stepping = decode_signature(signature[0])
    names = [cpuid(leaf, 0) for leaf in (0x80000002, 0x80000003, 0x80000004)]
    name = b"".join(struct.pack("<4I", *words) for words in names if words)
    return Cpu(
        architecture,
        struct.pack("<3I", ebx, edx, ecx).decode("ascii", "replace"),
        family,
        model,
        stepping,
        name.split(b"\0")[0].decode("ascii", "replace").strip(),
        "cpuid",
    )


def decode_signature(eax: int) -> tuple[int, int, int]:
    """Display family, display model and stepping of CPUID leaf 1 (Intel SDM vol. 2A)."""
    family, model = eax >> 8 & 0xF, eax >> 4 & 0xF
    if family in (0x6, 0xF):
        model |= eax >> 12 & 0xF0
    if family == 0xF:
        family += eax >> 20 & 0xFF
    return family, model, eax & 0xF
