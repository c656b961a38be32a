"""The kernel's lists of CPU numbers ("0-3,8")."""

from __future__ import annotations

from pathlib import Path


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Parse a list; empty for an empty one."""
    cpus: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first:
            cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)


def online_cpus(sys_root: Path = Path("/sys")) -> tuple[int, ...]:
    """Numbers of the CPUs that are online; OSError where sysfs does not say."""
    return parse_cpu_list((sys_root / "devices/system/cpu/online").read_text())


def tickless_cpus(sys_root: Path = Path("/sys")) -> tuple[int, ...]:
    """Numbers of the CPUs that have no tick while one thread alone runs there (nohz_full=)."""
    try:
        text = (sys_root / "devices/system/cpu/nohz_full").read_text().strip()
    except OSError:  # this kernel cannot do that
        return ()
    return () if text == "(null)" else parse_cpu_list(text)
