"""What this process may do: capabilities, seccomp, namespaces, container, memory limit."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

# linux/capability.h, by bit.
_CAPABILITY_NAMES = """
    CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
    NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO
    SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME
    SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG
    WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE
"""
CAPABILITIES = tuple(_CAPABILITY_NAMES.split())

# Inode numbers of the first namespaces (include/linux/proc_ns.h).
_FIRST_NAMESPACE = {"user": 0xEFFFFFFD, "pid": 0xEFFFFFFC}
_CGROUP_MARKS = {"docker": "docker", "kubepods": "kubernetes", "libpod": "podman", "lxc": "lxc"}


def decode_capabilities(mask: int) -> frozenset[str]:
    """Names, without CAP_, of the capabilities in a mask as /proc/PID/status shows it."""
    return frozenset(name for bit, name in enumerate(CAPABILITIES) if mask >> bit & 1)


def in_first_namespace(kind: str, proc: Path) -> bool | None:
    """Whether we are in the machine's own namespace of a kind ("user", "pid"); None: unknown."""
    try:
        link = os.readlink(proc / "self/ns" / kind)
    except OSError:
        return None
    return link == f"{kind}:[{_FIRST_NAMESPACE[kind]}]"


def detect_container(root: Path) -> str:
    """Kind of container that we run in, as far as it shows; empty if none."""
    try:
        return (root / "run/systemd/container").read_text().strip()
    except OSError:
        pass
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    try:
        cgroup = (root / "proc/self/cgroup").read_text()
    except OSError:
        return ""
    return next((name for mark, name in _CGROUP_MARKS.items() if mark in cgroup), "")


@dataclass(frozen=True, slots=True)
class MemoryRoom:
    """How much memory may still be used.

    Attributes:
        bytes: the least of what is free on the machine and in our control groups.
        limit: what sets that: a control group's path, or "machine".
    """

    bytes: int
    limit: str


def read_memory_room(root: Path) -> MemoryRoom | None:
    """Head room for snapshots; None where nothing tells."""
    rooms = [room for room in (_machine_room(root), *_cgroup_rooms(root)) if room]
    return min(rooms, key=lambda room: room.bytes) if rooms else None


def _machine_room(root: Path) -> MemoryRoom | None:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return MemoryRoom(int(line.split()[1]) * 1024, "machine")
    return None


def _cgroup_rooms(root: Path) -> list[MemoryRoom]:
    """Room in our control group and all above it, in version 2 or 1 of the interface."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    rooms = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, limit, used = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            top = root / "sys/fs/cgroup/memory"
            limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        folder = top / path.lstrip("/")
        while folder.is_relative_to(top):
            try:
                left = int((folder / limit).read_text()) - int((folder / used).read_text())
            except (OSError, ValueError):  # the top has no limit; "max" is none
                left = None
            if left is not None:
                rooms.append(MemoryRoom(left, f"/{folder.relative_to(top)}"))
            folder = folder.parent
    return rooms
