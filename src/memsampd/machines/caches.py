"""The cache hierarchy of this machine, from sysfs or, where that is silent, from CPUID."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from memsampd.machines.cpulist import parse_cpu_list

CacheKind = Literal["data", "instruction", "unified"]
CpuidFunction = Callable[[int, int], tuple[int, int, int, int] | None]

# Intel SDM vol. 2A, CPUID leaf 4; AMD APM vol. 3, leaf 0x8000001D: the same layout.
_CPUID_LEAVES = (0x4, 0x8000001D)
_CPUID_KINDS: dict[int, CacheKind] = {1: "data", 2: "instruction", 3: "unified"}
_CPUID_SUBLEAVES_MAX = 16


class Cache(msgspec.Struct, frozen=True):
    """One cache.

    Attributes:
        level: 1, 2, 3, ...
        kind: "data", "instruction" or "unified".
        size_bytes: capacity.
        line_bytes: size of a line; 0 if unknown.
        ways: lines in a set; 0 if unknown.
        sets: number of sets; 0 if unknown.
        shared_cpus: CPUs that share it; empty if unknown.
        source: "sysfs" or "cpuid".
    """

    level: int
    kind: CacheKind
    size_bytes: int
    line_bytes: int
    ways: int
    sets: int
    shared_cpus: tuple[int, ...]
    source: Literal["sysfs", "cpuid"]

    @property
    def name(self) -> str:
        """The usual name: "L1d", "L1i", "L2", ..."""
        return f"L{self.level}" + {"data": "d", "instruction": "i", "unified": ""}[self.kind]


def read_caches(cpus: Sequence[int], sys_root: Path, cpuid: CpuidFunction) -> tuple[Cache, ...]:
    """All caches that these CPUs have, each once, by level, kind and CPUs.

    Args:
        cpus: CPU numbers.
        sys_root: root of sysfs.
        cpuid: (leaf, subleaf) -> (eax, ebx, ecx, edx), or None where there is none.

    Returns:
        Those that sysfs describes, and those only CPUID knows. Empty if both are silent: then a
        hypervisor hides the hierarchy.
    """
    found = {cache for cpu in cpus for cache in _sysfs_caches(cpu, sys_root)}
    known = {(cache.level, cache.kind) for cache in found}
    found |= {cache for cache in _cpuid_caches(cpuid) if (cache.level, cache.kind) not in known}
    return tuple(sorted(found, key=lambda cache: (cache.level, cache.kind, cache.shared_cpus)))


def _sysfs_caches(cpu: int, sys_root: Path) -> list[Cache]:
    caches = []
    for index in sys_root.glob(f"devices/system/cpu/cpu{cpu}/cache/index*"):
        level, size_bytes = _number(index / "level"), _size_bytes(index / "size")
        kind = _text(index / "type").lower()
        if level and size_bytes and kind in ("data", "instruction", "unified"):
            caches.append(
                Cache(
                    level,
                    kind,  # type: ignore[arg-type]
                    size_bytes,
                    _number(index / "coherency_line_size"),
                    _number(index / "ways_of_associativity"),
                    _number(index / "number_of_sets"),
                    parse_cpu_list(_text(index / "shared_cpu_list")),
                    "sysfs",
                )
            )
    return caches


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if text.isdigit() else 0


def _size_bytes(path: Path) -> int:
    text = _text(path)
    unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 0)
    if unit:
        text = text[:-1]
    return int(text) * (unit or 1) if text.isdigit() else 0


def _cpuid_caches(cpuid: CpuidFunction) -> list[Cache]:
    for leaf in _CPUID_LEAVES:
        caches = []
        for subleaf in range(_CPUID_SUBLEAVES_MAX):
            words = cpuid(leaf, subleaf)
            if words is None or words[0] & 0x1F not in _CPUID_KINDS:
                break
            caches.append(decode_cpuid_cache(words))
        if caches:
            return caches
    return []


def decode_cpuid_cache(words: tuple[int, int, int, int]) -> Cache:
    """Decode one subleaf of CPUID leaf 4 or 0x8000001D (eax, ebx, ecx, edx)."""
    eax, ebx, ecx, _ = words
    line_bytes = (ebx & 0xFFF) + 1
    partitions = (ebx >> 12 & 0x3FF) + 1
    ways = (ebx >> 22) + 1
    sets = ecx + 1
    return Cache(
        level=eax >> 5 & 0x7,
        kind=_CPUID_KINDS[eax & 0x1F],
        size_bytes=line_bytes * partitions * ways * sets,
        line_bytes=line_bytes,
        ways=ways,
        sets=sets,
        shared_cpus=(),
        source="cpuid",
    )
