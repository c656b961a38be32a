"""The cache hierarchy of this machine, from sysfs or, where that is silent, from CPUID."""

from __future__ import annotations

import os
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
_MOST_BYTES = 4096  # of a file of sysfs


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
    found = set(_sysfs_caches(cpus, sys_root))
    known = {(cache.level, cache.kind) for cache in found}
    found |= {cache for cache in _cpuid_caches(cpuid) if (cache.level, cache.kind) not in known}
    return tuple(sorted(found, key=lambda cache: (cache.level, cache.kind, cache.shared_cpus)))


def _sysfs_caches(cpus: Sequence[int], sys_root: Path) -> list[Cache]:
    caches, seen = [], set()
    for cpu in cpus:
        folder = f"{sys_root}/devices/system/cpu/cpu{cpu}/cache"
        for index in _indices(folder):
            shared = _text(f"{folder}/{index}/shared_cpu_list")
            if (index, shared) in seen:  # another CPU has told of it
                continue
            found = _sysfs_cache(f"{folder}/{index}", shared)
            if found and shared:
                seen.add((index, shared))
            caches += found
    return caches


def _indices(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.startswith("index")]
    except OSError:
        return []


def _sysfs_cache(index: str, shared: str) -> list[Cache]:
    """One at most: a hypervisor may hide what it is."""
    level, size_bytes = _number(f"{index}/level"), _size_bytes(f"{index}/size")
    kind = _text(f"{index}/type").lower()
    if not (level and size_bytes and kind in ("data", "instruction", "unified")):
        return []
    return [
        Cache(
            level,
            kind,  # type: ignore[arg-type]
            size_bytes,
            _number(f"{index}/coherency_line_size"),
            _number(f"{index}/ways_of_associativity"),
            _number(f"{index}/number_of_sets"),
            parse_cpu_list(shared),
            "sysfs",
        )
    ]


def _text(path: str) -> str:
    """What a file of sysfs says: of many CPUs there are thousands, so it is read without ado."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(file, _MOST_BYTES).decode("ascii", "replace").strip()
    except OSError:
        return ""
    finally:
        os.close(file)


def _number(path: str) -> int:
    text = _text(path)
    return int(text) if text.isdigit() else 0


def _size_bytes(path: str) -> int:
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
