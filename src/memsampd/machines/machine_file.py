"""The machine file: what was measured of this machine once, and is read at every start."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from memsampd.errors import CapabilityError
from memsampd.machines.bandwidth import BUSY_SHARE, Bandwidth
from memsampd.machines.machine import Machine

logger = logging.getLogger(__name__)

VERSION = 1
_SYSTEM = Path("/var/lib/memsampd/machine.json")


class Peak(msgspec.Struct, frozen=True):
    """The fastest that memory was gone through, bytes per second.

    Attributes:
        read: loading.
        write: storing, with all that the machine does for it.
    """

    read: float
    write: float

    def share(self, fetched: float, written_back: float) -> float:
        """Return the share of its time that memory is busy with this traffic, 0 upwards.

        A line that is only fetched takes it as long as one of the read benchmark, a line that is
        fetched, changed and written back as long as one of the write benchmark.

        Args:
            fetched: bytes per second.
            written_back: bytes per second, of lines that were fetched as well.
        """
        return (fetched - written_back) / self.read + written_back / self.write


class MemoryPeak(msgspec.Struct, frozen=True):
    """What memory gives at most.

    Attributes:
        one_thread: to one thread.
        all_threads: to one thread on each CPU; None: not all CPUs could be used.
    """

    one_thread: Peak
    all_threads: Peak | None


class MachineFile(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept; unknown keys are ignored.

    Attributes:
        version: of this format; files of a later one are not read.
        measured_unix_seconds: when.
        cpu: name of the processor, and
        cpus: number of its CPUs: on another machine the file says nothing.
        bandwidths: what was measured.
        others_cpu_share: share of the CPUs that others used meanwhile, 0..1.
        area_bytes: memory that was gone through.
        allowed_cpus: memsampd could use only so many of the CPUs at once; None: all.
    """

    version: int = VERSION
    measured_unix_seconds: float
    cpu: str
    cpus: int
    bandwidths: tuple[Bandwidth, ...]
    others_cpu_share: float
    area_bytes: int
    allowed_cpus: float | None = None

    @property
    def peak(self) -> MemoryPeak:
        """The figures that others are shares of."""
        most = max(each.threads for each in self.bandwidths)
        return MemoryPeak(self._peak(1), self._peak(most) if self.allowed_cpus is None else None)

    @property
    def doubts(self) -> str:
        """Why the figures may be too low, for people; empty if nothing was in the way."""
        found = []
        if self.others_cpu_share > BUSY_SHARE:
            found.append(f"others used {self.others_cpu_share:.0%} of the CPU time")
        if self.allowed_cpus is not None:
            found.append(f"only {self.allowed_cpus:g} of {self.cpus} CPUs could be used")
        return ", and ".join(found)

    def _peak(self, threads: int) -> Peak:
        rates = {
            each.operation: each.bytes_per_second
            for each in self.bandwidths
            if each.threads == threads
        }
        return Peak(rates["read"], rates["write"])

    def is_of(self, machine: Machine) -> bool:
        """Whether it was measured on a machine like this one."""
        return (self.cpu, self.cpus) == (machine.cpu.name, len(machine.cpus))


def own_path() -> Path:
    """Where this user keeps the file: root for the whole machine, unless XDG_STATE_HOME is set."""
    state = os.environ.get("XDG_STATE_HOME")
    if state:
        return Path(state) / "memsampd/machine.json"
    return _SYSTEM if os.geteuid() == 0 else Path.home() / ".local/state/memsampd/machine.json"


def find_file(paths: Sequence[Path] | None = None) -> Path | None:
    """Return the file that counts, this user's before the machine's; None if there is none."""
    candidates = dict.fromkeys((own_path(), _SYSTEM)) if paths is None else paths
    # Not by the path's own method, which raises where one may not look.
    return next((path for path in candidates if os.path.exists(path)), None)


def read_file(path: Path) -> MachineFile:
    """Read a file.

    Raises:
        CapabilityError: it cannot be read, is damaged, or of a later version.
    """
    remedy = "measure again with: memsampd machine --measure"
    try:
        content = msgspec.json.decode(path.read_bytes(), type=MachineFile)
    except OSError as error:
        raise CapabilityError(f"cannot read {path}: {error.strerror}", remedy) from error
    except msgspec.MsgspecError as error:
        raise CapabilityError(f"{path} is no machine file: {error}", remedy) from error
    if content.version != VERSION:
        raise CapabilityError(f"{path} is of version {content.version}, not {VERSION}", remedy)
    if not _is_whole(content):
        raise CapabilityError(f"{path} lacks figures", remedy)
    return content


def _is_whole(content: MachineFile) -> bool:
    """Whether there is what a peak is made of."""
    found = {(each.operation, each.threads) for each in content.bandwidths}
    most = max((threads for _, threads in found), default=1)
    needed = {(operation, threads) for operation in ("read", "write") for threads in (1, most)}
    return needed <= found and all(each.bytes_per_second > 0 for each in content.bandwidths)


def write_file(path: Path, content: MachineFile) -> None:
    """Write a file, whole or not at all.

    Raises:
        CapabilityError: it cannot be written.
    """
    part = Path(f"{path}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(msgspec.json.format(msgspec.json.encode(content)) + b"\n")
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise CapabilityError(
            f"cannot write {path}: {error.strerror}", "name another file with --output FILE"
        ) from error


def known_peak(machine: Machine) -> MemoryPeak | None:
    """The peak that was measured on this machine, with a warning if in doubt; None if none was.

    Raises:
        CapabilityError: there is a file, and it cannot be used.
    """
    path = find_file()
    if path is None:
        return None
    content = read_file(path)
    if not content.is_of(machine):
        raise CapabilityError(
            f"{path} was measured on another machine ({content.cpu}, {content.cpus} CPUs)",
            "measure again with: memsampd machine --measure",
        )
    if content.doubts:
        logger.warning(
            "the memory peak in %s may be too low: %s while it was measured; measure again with: "
            "memsampd machine --measure",
            path,
            content.doubts,
        )
    return content.peak
