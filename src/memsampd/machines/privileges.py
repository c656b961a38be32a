"""What this process may do: capabilities, seccomp, namespaces, container."""

from __future__ import annotations

import os
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
