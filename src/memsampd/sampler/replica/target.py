"""What the core must know of a target before it reads it, found without touching it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from memsampd import _core
from memsampd.errors import CaptureError
from memsampd.sampler.process.identity import PROC
from memsampd.sampler.process.maps import read_maps

# Between what kernels and runtimes use by themselves (executables at 0x55..., libraries at 0x7f...,
# Go's heap at 0xc0_0000_0000, shadow memories of sanitizers below 16 TiB).
_AREA_CANDIDATES = [terabytes << 40 for terabytes in (32, 40, 48, 24, 20, 64)]
_DESCRIPTORS_LOOKED_AT = 4096
_ELF_32_BIT = b"\x7fELF\x01"


class TargetTraits(msgspec.Struct, frozen=True):
    """What of a target decides how its memory is read.

    Attributes:
        area_address: a place for translated code that it does not use.
        supplies_pages: it has a userfaultfd, or may have: memory that is not present need not be
            zero.
        shares_clock: it is in our time namespace: its vDSO's data are ours.
    """

    area_address: int
    supplies_pages: bool
    shares_clock: bool


def read_traits(pid: int, proc: Path = PROC) -> TargetTraits:
    """Look at a target.

    Raises:
        CaptureError: it is gone, a 32-bit program, or has no room for translated code.
    """
    try:
        if _is_32_bit(pid, proc):
            raise CaptureError(
                "not-64-bit",
                f"process {pid} runs a 32-bit program",
                "only 64-bit code is supported",
            )
        return TargetTraits(
            _free_place(pid, proc),
            _has_userfaultfd(pid, proc),
            _shares_clock(pid, proc),
        )
    except OSError as error:
        raise CaptureError("gone", f"process {pid} is gone or cannot be read: {error}") from error


def _is_32_bit(pid: int, proc: Path) -> bool:
    try:
        with open(proc / str(pid) / "exe", "rb") as file:
            return file.read(len(_ELF_32_BIT)) == _ELF_32_BIT
    except PermissionError:  # it may be run but not read
        return False


def _free_place(pid: int, proc: Path) -> int:
    mappings = read_maps(pid, proc).mappings
    for address in _AREA_CANDIDATES:
        end = address + _core.AREA_BYTES
        if not any(m.start < end and address < m.end for m in mappings):
            return address
    raise CaptureError(
        "no-room", f"process {pid} uses all addresses at which translated code could lie"
    )


def _has_userfaultfd(pid: int, proc: Path) -> bool:
    folder = proc / str(pid) / "fd"
    names = os.listdir(folder)
    if len(names) > _DESCRIPTORS_LOOKED_AT:  # it takes 3 us each: a server has 100,000
        return True
    for name in names:
        with suppress(OSError):  # closed meanwhile
            if "userfaultfd" in os.readlink(folder / name):
                return True
    return False


def _shares_clock(pid: int, proc: Path) -> bool:
    try:
        theirs = os.readlink(proc / str(pid) / "ns" / "time")
        return theirs == os.readlink(proc / "self" / "ns" / "time")
    except FileNotFoundError:  # before Linux 5.6
        return True
