"""The last-level cache and how it can be divided: sysfs, and the kernel's resctrl file system.

https://docs.kernel.org/filesystems/resctrl.html. All paths are below a root, so that tests use a
tree of their own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from memsampd.errors import CapabilityError
from memsampd.machines.caches import CpuidFunction
from memsampd.machines.machine import native_cpuid, read_machine

RESCTRL = Path("sys/fs/resctrl")
PREFIX = "memsampd-"
"""Names of our groups begin like this; all others are left alone."""


@dataclass(frozen=True, slots=True)
class DividedCache:
    """A last-level cache that can be divided by ways.

    Attributes:
        name: as resctrl calls it: "L3".
        size_bytes: of one of them.
        ways: that it has.
        least_ways: that a group has at least.
        groups: the most groups beside the default one; None if nobody says.
        domains: numbers of the caches of that level, as in schemata.
        cpus: that share the first of them.
        source: who says so.
    """

    name: str
    size_bytes: int
    ways: int
    least_ways: int
    groups: int | None
    domains: tuple[int, ...]
    cpus: tuple[int, ...]
    source: Literal["resctrl", "sysfs", "command line"]

    @property
    def way_bytes(self) -> int:
        """Size of one way."""
        return self.size_bytes // self.ways

    def schemata(self, first_way: int, ways: int) -> str:
        """Return the line that gives a group these ways, in all caches of the level."""
        mask = ((1 << ways) - 1) << first_way
        digits = (self.ways + 3) // 4
        return f"{self.name}:" + ";".join(f"{each}={mask:0{digits}x}" for each in self.domains)


def read_divided_cache(root: Path = Path("/"), cpuid: CpuidFunction = native_cpuid) -> DividedCache:
    """Describe this machine's last-level cache.

    Args:
        root: where sys is mounted.
        cpuid: the CPUID instruction, which is asked where sysfs is silent.

    Raises:
        CapabilityError: nothing tells its size and ways.
    """
    caches = [
        cache
        for cache in read_machine(root, cpuid).caches
        if cache.kind != "instruction" and cache.ways and cache.size_bytes
    ]
    if not caches:
        raise CapabilityError(
            "nothing tells the size and the ways of this machine's caches",
            "name them: --cache SIZE --ways N",
        )
    level = max(cache.level for cache in caches)
    last = next(cache for cache in caches if cache.level == level)
    domains = _domains(root / "sys/devices/system/cpu", level)
    info = root / RESCTRL / "info" / last.name
    mask = _text(info / "cbm_mask")
    if not mask:
        return DividedCache(
            *(last.name, last.size_bytes, last.ways, 1, None),
            *(domains, last.shared_cpus, "sysfs"),
        )
    return DividedCache(
        name=last.name,
        size_bytes=last.size_bytes,
        ways=int(mask, 16).bit_count(),
        least_ways=int(_text(info / "min_cbm_bits") or 1),
        groups=int(_text(info / "num_closids") or 1) - 1,
        domains=domains,
        cpus=last.shared_cpus,
        source="resctrl",
    )


def _domains(cpus: Path, level: int) -> tuple[int, ...]:
    found = set()
    for index in cpus.glob("cpu[0-9]*/cache/index*"):
        if _text(index / "level") == str(level) and (number := _text(index / "id")).isdigit():
            found.add(int(number))
    return tuple(sorted(found)) or (0,)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Group:
    """Processes that are to share some ways.

    Attributes:
        name: of its directory, without the prefix.
        schemata: line as :meth:`DividedCache.schemata` makes it.
        pids: processes.
    """

    name: str
    schemata: str
    pids: tuple[int, ...]


def apply(
    groups: Sequence[Group],
    root: Path = Path("/"),
    tell: Callable[[str], None] = lambda text: None,
) -> list[Path]:
    """Have the kernel divide the cache; groups that were made so before are taken away first.

    Either all groups are there afterwards, or none of ours.

    Args:
        groups: to be made.
        root: where proc and sys are mounted.
        tell: told which processes have ended meanwhile: their groups stay without them.

    Returns:
        The directories made; ``rmdir`` undoes each.

    Raises:
        CapabilityError: resctrl is not mounted, may not be written, or has no room for a group.
    """
    base = root / RESCTRL
    if not (base / "schemata").exists():
        raise CapabilityError(
            f"{base} is not mounted",
            "mount -t resctrl resctrl /sys/fs/resctrl, on a CPU with cache allocation (cat_l3 in "
            "/proc/cpuinfo; virtual machines seldom have it)",
        )
    undo(root)
    made: list[Path] = []
    try:
        for group in groups:
            folder = base / f"{PREFIX}{group.name}"
            folder.mkdir()
            made.append(folder)
            (folder / "schemata").write_text(f"{group.schemata}\n")
            for pid in group.pids:
                if not _move(pid, folder / "tasks", root):
                    tell(f"process {pid} has ended meanwhile: {folder} is without it")
    except OSError as error:
        undo(root)
        raise CapabilityError(
            f"cannot divide the cache: {error.filename or base}: {error.strerror}",
            "be root; see /sys/fs/resctrl/info/last_cmd_status; take away groups that nobody needs",
        ) from error
    return made


def undo(root: Path = Path("/")) -> None:
    """Take our groups away: their processes fall back into the default group."""
    for folder in (root / RESCTRL).glob(f"{PREFIX}*"):
        if not folder.is_dir():
            continue
        with suppress(OSError):
            folder.rmdir()  # as the kernel has it, with all its files


def _move(pid: int, tasks: Path, root: Path) -> bool:
    """Move a process thread by thread, until no new one appears; False: it has ended."""
    moved: set[int] = set()
    while True:
        try:
            threads = {int(name) for name in os.listdir(root / f"proc/{pid}/task")}
        except (FileNotFoundError, ProcessLookupError):
            return False
        if not threads - moved:
            return True
        for tid in threads - moved:
            try:
                with tasks.open("a") as file:
                    file.write(f"{tid}\n")
            except ProcessLookupError:  # it has ended
                continue
        moved |= threads
