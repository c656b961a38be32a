"""Snapshots: taking shadows of a running thread, making them harmless, and ending them."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from memsampd import _core
from memsampd.errors import CaptureError
from memsampd.sampler.process.identity import PROC, read_stat
from memsampd.sampler.process.maps import AddressSpace, parse_maps, read_maps
from memsampd.sampler.process.status import read_status
from memsampd.sampler.records import BurstCost
from memsampd.sampler.shadow.collecting import (
    SHADOW_NAME,
    collect,
    is_gone,
    leftovers,
    namespaced_pid,
    needs_seccomp_suspended,
)
from memsampd.sampler.shadow.faults import CopyFaults
from memsampd.sampler.shadow.files import OpenFiles, TargetFiles
from memsampd.sampler.shadow.guardian import Guardian
from memsampd.sampler.shadow.site import InjectionSite, SiteFinder
from memsampd.sampler.shadow.stops import StopEstimator, read_huge_bytes
from memsampd.sampler.shadow.unforked import CopyPlan, Range, UnforkedMemory

_SYS_MPROTECT, _SYS_PRCTL, _SYS_CLOSE_RANGE, _SYS_UNSHARE = 10, 157, 436, 272
_SYS_WAIT4, _WALL = 61, 0x40000000
_PR_SET_NAME = 15
_CLOSE_RANGE_UNSHARE = 2
_CLONE_FILES = 0x400
_PROT_READ = 1
_RETRY_SECONDS = 0.005
_COLLECT_PATIENCE_SECONDS = 0.02
_LAST_PATIENCE_SECONDS = 5.0
SHADOW_NICENESS = 5

_TRANSIENT = {"not-running", "in-syscall", "in-rseq", "no-scratch"}
_CAUSES = {
    "not-running": ("the thread sleeps", ""),
    "in-syscall": ("the thread is inside system calls all the time", ""),
    "in-rseq": ("the thread is inside a restartable sequence", ""),
    "job-stopped": ("the process is stopped", "continue it (kill -CONT)"),
    "gone": ("the process or thread is gone", ""),
    "not-64-bit": ("the thread runs 32-bit code", "only 64-bit code is supported"),
    "no-scratch": ("the initial stack cannot be used as scratch memory", ""),
    "unexpected": ("the thread stopped in an unknown way", "please report this"),
}

# (target's thread; process, thread and parent as it sees them; signal mask; pending signals;
# whether it locks memory; syscall address; forbidden areas; open files): emulation_begin in
# _core/replica/emulation.c.
EmulationIdentity: TypeAlias = tuple[int, int, int, int, int, int, bool, int, bytes, bytes]


@dataclass(frozen=True, slots=True)
class Shadow:
    """A stopped copy of a thread, with the registers of the moment it was made in.

    Attributes:
        pid: in our PID namespace.
        ns_pid: in the target's.
        registers: struct user_regs_struct as bytes.
        tid: the thread that it is a copy of.
        syscall_address: a ``syscall`` instruction in its code.
        scratch_address: memory of it that nobody uses.
        signal_mask: that thread's, a bit a signal (bit 0 is signal 1); the shadow's own blocks all.
        pending: signals that waited for that thread, a bit each.
        absent: areas that the target has and the shadow has not, (start, end): of those that it
            keeps from its children (MADV_DONTFORK), what could not be rebuilt.
        identity: whom it takes itself for, if that is not what its thread is now.
        files: what that thread had open, and can be read and written without it.
    """

    pid: int
    ns_pid: int
    registers: bytes
    tid: int
    syscall_address: int
    scratch_address: int
    signal_mask: int = 0
    pending: int = 0
    absent: tuple[tuple[int, int], ...] = ()
    identity: EmulationIdentity | None = None
    files: OpenFiles = field(default_factory=OpenFiles)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One or more equal shadows of one stop.

    Attributes:
        shadows: the copies.
        time_seconds: CLOCK_MONOTONIC time of the stop.
        stop_seconds: how long the thread was stopped.
        copied_bytes: resident memory of the target then.
        cut_short: a write of the target came back short because it was stopped.
        stops: how often it was stopped for them.
        late_cow_seconds: what earlier shadows cost the target after their end, page by page.
    """

    shadows: tuple[Shadow, ...]
    time_seconds: float
    stop_seconds: float
    copied_bytes: int
    cut_short: bool
    stops: int = 1
    late_cow_seconds: float = 0.0


def last_cpu(tid: int, proc: Path = PROC) -> int:
    """CPU on which a thread runs or ran last; -1 if it is gone."""
    try:
        return read_stat(tid, proc).last_cpu
    except OSError:
        return -1


@dataclass(frozen=True, slots=True)
class AtStop:
    """What the native core noted of the target's memory while it was stopped.

    Attributes:
        rebuilt: of each area that was to be copied, 1 if the shadow then had it.
        copied_bytes: how much was copied.
        copy_seconds: for which that prolonged the stop.
        mapped_pages: of address space; 0 if not known.
        maps_text: its /proc/PID/maps, if anything was to be copied; else empty.
    """

    rebuilt: bytes
    copied_bytes: int
    copy_seconds: float
    mapped_pages: int
    maps_text: bytes

    def space(self) -> AddressSpace:
        """The areas that it had."""
        return AddressSpace(parse_maps(self.maps_text.decode(errors="surrogateescape")))


def _mapped_pages(pid: int, proc: Path) -> int:
    return int((proc / str(pid) / "statm").read_text().split()[0])


def _memory_bytes(pid: int, proc: Path) -> tuple[int, int]:
    """Resident memory, and the private part of it, whose page tables a clone copies."""
    _, resident, shared = (proc / str(pid) / "statm").read_text().split()[:3]
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    return int(resident) * page_bytes, (int(resident) - int(shared)) * page_bytes


class Snapshots:
    """Takes and ends shadows of one process; every call from one and the same thread.

    Args:
        pid: the target.
        proc: root of the proc file system.
        max_stop_seconds: no shadow is made if stopping the target is expected to take longer.
        niceness: of shadows.

    Raises:
        CaptureError: no system call can be injected into this process.
    """

    def __init__(
        self,
        pid: int,
        proc: Path = PROC,
        *,
        max_stop_seconds: float = math.inf,
        niceness: int = SHADOW_NICENESS,
    ) -> None:
        self._stops = StopEstimator(max_stop_seconds, lambda: read_huge_bytes(pid, proc))
        self._niceness = niceness
        self._pid = pid
        self._proc = proc
        self._finder = SiteFinder(pid, proc)
        self._unforked = UnforkedMemory(pid, proc)
        self._files = TargetFiles(proc)
        self._refuse_shadow_stack()
        self._finder.find()
        self._is_first_process = self._namespaced_pid() == 1
        self._uncollected: list[int] = []
        self._faults = CopyFaults()
        self._guardian: Guardian | None = Guardian(pid)
        for _, ns_pid in leftovers(pid, proc):
            self._adopt_leftover(ns_pid)
        self._allowed_cpus = os.sched_getaffinity(0)

    def _adopt_leftover(self, ns_pid: int) -> None:
        assert self._guardian is not None
        self._guardian.born(ns_pid)
        self._uncollected.append(ns_pid)

    def _refuse_shadow_stack(self) -> None:
        with suppress(OSError):
            if "shstk" in read_status(self._pid, self._proc).x86_features:
                raise CaptureError(
                    "shadow-stack",
                    f"process {self._pid} has a hardware shadow stack, which forbids the return "
                    "that heals an interrupted injection",
                    "start it with GLIBC_TUNABLES=glibc.cpu.hwcaps=-SHSTK",
                )

    def take(self, tid: int, count: int, patience_seconds: float) -> Snapshot:
        """Copy a running thread.

        Where the copies lack memory that is only now known to be kept from children, they are made
        once more, with it.

        Args:
            tid: the thread.
            count: shadows wanted, 1 to 4.
            patience_seconds: how long to wait for the thread to be at work outside of the kernel.

        Raises:
            CaptureError: it could not be done; the thread runs on as it was.
        """
        snapshot, lacks_memory = self._take(tid, count, patience_seconds)
        if not lacks_memory:
            return snapshot
        cost = BurstCost(
            stop_seconds=snapshot.stop_seconds,
            stops=snapshot.stops,
            cow_seconds=snapshot.late_cow_seconds,
        )
        for shadow in snapshot.shadows:
            cost += self.end(shadow)
        cut_short = snapshot.cut_short
        try:
            snapshot, _ = self._take(tid, count, patience_seconds)
        except CaptureError as error:
            error.stop_seconds += cost.stop_seconds
            raise
        return replace(
            snapshot,
            stop_seconds=cost.stop_seconds + snapshot.stop_seconds,
            stops=cost.stops + snapshot.stops,
            late_cow_seconds=cost.cow_seconds + snapshot.late_cow_seconds,
            cut_short=cut_short or snapshot.cut_short,
        )

    def _take(self, tid: int, count: int, patience_seconds: float) -> tuple[Snapshot, bool]:
        """Copy it once; whether the copies lack memory that could be copied as well."""
        if self._guardian is None:
            raise CaptureError("closed", "the access source is closed")
        self._guardian.check()
        self._collect_pending(any_state=False, patience_seconds=0.0)
        self._refuse_long_stop(count)
        suspend = needs_seccomp_suspended(self._pid, self._proc)
        give_up, wasted_seconds = time.monotonic() + patience_seconds, 0.0
        self._guardian.due()
        with self._on_another_cpu(tid):
            while True:
                try:
                    site = self._finder.find()
                except CaptureError as refusal:
                    is_over = time.monotonic() > give_up or refusal.reason != "gone"
                    if is_over or is_gone(self._pid, self._proc):
                        self._guardian.settled()
                        raise
                    time.sleep(_RETRY_SECONDS)  # in the midst of an exec, it seems
                    continue
                plan = self._unforked.plan(site.space)
                copied_bytes, private_bytes, faults = self._sizes()
                files = self._files.plan(tid)
                (
                    status,
                    error,
                    pids,
                    ns_pids,
                    registers,
                    mask,
                    pending,
                    at,
                    stopped,
                    cut_short,
                    scratch,
                    kept,
                    fdinfo,
                ) = _core.shadow_spawn(
                    tid,
                    site.for_core(),
                    count,
                    suspend,
                    plan.for_core(),
                    plan.room,
                    files.for_core(),
                )
                open_files = files.settle(fdinfo, pids)
                wasted_seconds += stopped if status != "ok" else 0.0
                if status not in _TRANSIENT or time.monotonic() > give_up:
                    break
                time.sleep(_RETRY_SECONDS)
        shadows = tuple(
            Shadow(
                pid,
                ns_pid,
                registers,
                tid,
                site.syscall_address,
                scratch,
                mask,
                pending,
                files=open_files,
            )
            for pid, ns_pid in zip(pids, ns_pids, strict=True)
        )
        late_cow_seconds = (
            self._faults.begin(len(shadows), faults, private_bytes) if shadows else 0.0
        )
        for shadow in shadows:
            self._guardian.born(shadow.ns_pid)
        self._guardian.settled()
        try:
            if status != "ok":
                raise self._refusal(status, error, wasted_seconds)
            stop = AtStop(*kept)
            self._stops.learn(private_bytes, count, stopped - stop.copy_seconds)
            self._stops.learn_copy(stop.copied_bytes, stop.copy_seconds)
            shadows = tuple(
                replace(shadow, absent=self._make_harmless(shadow, site, stop))
                for shadow in shadows
            )
            lacks_memory = self._learn_unforked(plan, stop.rebuilt, shadows[0])
        except BaseException as error:
            for shadow in shadows:
                self.end(shadow)
            if isinstance(error, OSError):
                raise CaptureError("lost", f"a shadow of process {self._pid} was lost") from error
            raise
        stop_seconds = stopped + wasted_seconds
        snapshot = Snapshot(
            shadows, at, stop_seconds, copied_bytes, cut_short, late_cow_seconds=late_cow_seconds
        )
        return snapshot, lacks_memory

    def _learn_unforked(self, plan: CopyPlan, rebuilt: bytes, shadow: Shadow) -> bool:
        if not plan.areas and not shadow.absent:
            return False
        now = read_maps(self._pid, self._proc)
        return self._unforked.learn(plan, rebuilt, shadow.absent, now)

    def _refuse_long_stop(self, count: int) -> None:
        _, private_bytes, _ = self._sizes()
        unforked_bytes = self._unforked.touched_bytes()
        if self._stops.forbids(private_bytes, count, unforked_bytes):
            expected = self._stops.estimate(private_bytes, count, unforked_bytes)
            unforked = (
                f", {unforked_bytes / 1e6:.0f} MB of it kept from children (MADV_DONTFORK)"
                if unforked_bytes
                else ""
            )
            raise CaptureError(
                "stop-too-long",
                f"copying process {self._pid} ({private_bytes / 1e6:.0f} MB of private memory"
                f"{unforked}) is expected to stop it for {1e3 * expected:.1f} ms, longer than the "
                f"{1e3 * self._stops.max_stop_seconds:g} ms allowed",
                "allow more with --max-stop",
            )

    def _namespaced_pid(self) -> int:
        try:
            return namespaced_pid(self._pid, self._proc)
        except OSError as error:  # it ended after its code was read
            raise CaptureError("gone", f"process {self._pid} is gone") from error

    def _sizes(self) -> tuple[int, int, int]:
        """Resident bytes, the private ones among them, and minor page faults so far."""
        try:
            faults = read_stat(self._pid, self._proc).minor_faults
            return *_memory_bytes(self._pid, self._proc), faults
        except OSError as error:
            raise CaptureError("gone", f"process {self._pid} is gone") from error

    def _refusal(self, status: str, error: int, stop_seconds: float) -> CaptureError:
        if status == "refused":
            return CaptureError(
                "refused",
                f"the kernel refuses to let us trace process {self._pid}: {os.strerror(error)}",
                "see memsampd doctor; another tracer (gdb, strace) may hold it",
            )
        if status == "call-failed":
            return CaptureError(
                "clone-failed",
                f"process {self._pid} cannot be copied: {os.strerror(error)}",
                "raise its limits of processes and memory",
            )
        cause, remedy = _CAUSES[status]
        return CaptureError(status, f"process {self._pid}: {cause}", remedy, stop_seconds)

    @contextmanager
    def _on_another_cpu(self, tid: int) -> Iterator[None]:
        """Leave the target's CPU alone: what it loses to our polling it loses for nothing."""
        os.sched_setaffinity(0, self._other_cpus(tid))
        try:
            yield
        finally:
            os.sched_setaffinity(0, self._allowed_cpus)

    def _other_cpus(self, tid: int) -> set[int]:
        return (self._allowed_cpus - {last_cpu(tid, self._proc)}) or self._allowed_cpus

    def _make_harmless(
        self, shadow: Shadow, site: InjectionSite, stop: AtStop
    ) -> tuple[Range, ...]:
        """Name it, take its descriptors away, and keep its stores from shared memory.

        Returns:
            The areas that it did not get from the target.
        """
        with suppress(OSError):  # else it would wait for the CPU behind the target at every call
            os.sched_setaffinity(shadow.pid, self._other_cpus(shadow.tid))
        with suppress(OSError):
            (self._proc / str(shadow.pid) / "oom_score_adj").write_text("1000")
        _core.shadow_leave_rseq(shadow.pid, shadow.registers, site.syscall_address)
        self._rename(shadow, site)
        self._drop_descriptors(shadow, site)
        space = read_maps(shadow.pid, self._proc)
        for mapping in space.mappings:
            if mapping.perms[1] == "w" and mapping.perms[3] == "s":
                self._call(
                    shadow, site, _SYS_MPROTECT, mapping.start, mapping.size_bytes, _PROT_READ
                )
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, shadow.pid, self._niceness)
        return self._kept_back(shadow.pid, space, site.space, stop)

    def _kept_back(
        self, shadow_pid: int, space: AddressSpace, before: AddressSpace, stop: AtStop
    ) -> tuple[Range, ...]:
        """What the target had at the stop, and a shadow has not.

        Of a target that is not yet known to keep anything back only the size at the stop is known.
        Where the shadow's is another, its areas before the stop that it still has must do.
        """
        if _mapped_pages(shadow_pid, self._proc) == stop.mapped_pages:
            return ()
        if stop.maps_text:
            return stop.space().beyond(space)
        now = read_maps(self._pid, self._proc)
        return tuple(area for area in before.beyond(space) if now.find(area[0]) is not None)

    def _drop_descriptors(self, shadow: Shadow, site: InjectionSite) -> None:
        """Else a pipe or port that the target closes would stay open until the shadow ends."""
        try:
            self._call(shadow, site, _SYS_CLOSE_RANGE, 0, 0xFFFFFFFF, _CLOSE_RANGE_UNSHARE)
        except OSError:  # before Linux 5.9
            self._call(shadow, site, _SYS_UNSHARE, _CLONE_FILES)

    def _rename(self, shadow: Shadow, site: InjectionSite) -> None:
        """So that people see what it is, and a later memsampd what is left of it."""
        memory = os.open(self._proc / str(shadow.pid) / "mem", os.O_RDWR | os.O_CLOEXEC)
        try:
            name = SHADOW_NAME.encode() + b"\0"
            before = os.pread(memory, len(name), shadow.scratch_address)
            os.pwrite(memory, name, shadow.scratch_address)
            self._call(shadow, site, _SYS_PRCTL, _PR_SET_NAME, shadow.scratch_address)
            os.pwrite(memory, before, shadow.scratch_address)
        finally:
            os.close(memory)

    def _call(self, shadow: Shadow, site: InjectionSite, number: int, *arguments: int) -> int:
        a, b, c = (*arguments, 0, 0, 0)[:3]
        return _core.shadow_call(
            shadow.pid, shadow.registers, site.syscall_address, number, (a, b, c, 0, 0, 0)
        )

    def fork(self, shadow: Shadow) -> Shadow:
        """Copy a shadow where it stands: that costs the target nothing.

        The copy is a child of the shadow, which collects it. Were both killed with us in between,
        it would be left to whom orphans are left to; so if that is the target, the first process
        of its namespace, it is a child of the target's from the start, as shadows are.

        Args:
            shadow: a stopped shadow, with the registers and the identity that it has now.

        Raises:
            OSError: it is gone, or cannot be copied.
        """
        assert self._guardian is not None
        if self._is_first_process:
            self._guardian.due()
        status, error, pid, ns_pid = _core.shadow_fork(
            shadow.pid,
            shadow.registers,
            shadow.syscall_address,
            self._is_first_process,
            needs_seccomp_suspended(self._pid, self._proc),
        )
        copy = replace(shadow, pid=pid, ns_pid=ns_pid)
        if pid:
            copy.files.hold(pid)
        if self._is_first_process:
            if pid:
                self._guardian.born(ns_pid)
            self._guardian.settled()
        if status == "ok":
            return copy
        if pid:
            self.discard(copy, shadow)
        raise OSError(error, f"a shadow cannot be copied: {status}")

    def discard(self, copy: Shadow, shadow: Shadow) -> BurstCost:
        """Kill what :meth:`fork` made of a shadow that still stands there, and collect it.

        Returns:
            Its CPU time, and copy-on-write faults of the target meanwhile.
        """
        cpu_seconds, _ = _core.shadow_kill(copy.pid)
        copy.files.release(copy.pid)
        if self._is_first_process:
            self._uncollected.append(copy.ns_pid)
        else:
            with suppress(OSError):  # the shadow is gone, and with it its children
                _core.shadow_call(
                    shadow.pid,
                    shadow.registers,
                    shadow.syscall_address,
                    _SYS_WAIT4,
                    (copy.ns_pid, 0, _WALL | os.WNOHANG, 0, 0, 0),
                )
        cow_seconds = 0.0
        with suppress(OSError):  # the target is gone
            cow_seconds = self._faults.charge(read_stat(self._pid, self._proc).minor_faults)
        return BurstCost(shadow_cpu_seconds=cpu_seconds, cow_seconds=cow_seconds)

    def kill(self, shadow: Shadow) -> BurstCost:
        """Kill a shadow at once; the next :meth:`end` has it collected, too.

        Returns:
            What it cost: its CPU time, copy-on-write faults of the target meanwhile.
        """
        cpu_seconds, _ = _core.shadow_kill(shadow.pid)
        shadow.files.release(shadow.pid)
        cow_seconds = 0.0
        with suppress(OSError):  # it is gone
            cow_seconds = self._faults.end(read_stat(self._pid, self._proc).minor_faults)
        self._uncollected.append(shadow.ns_pid)
        return BurstCost(shadow_cpu_seconds=cpu_seconds, cow_seconds=cow_seconds)

    def end(self, shadow: Shadow) -> BurstCost:
        """Kill a shadow and have it collected, now or when the target next allows it.

        Returns:
            What it cost: its CPU time, copy-on-write faults of the target meanwhile, the stop.
        """
        cost = self.kill(shadow)
        stop_seconds, stops = self._collect_pending(
            any_state=False, patience_seconds=_COLLECT_PATIENCE_SECONDS
        )
        return cost + BurstCost(stop_seconds=stop_seconds, stops=stops)

    def _collect_pending(self, any_state: bool, patience_seconds: float) -> tuple[float, int]:
        if not self._uncollected:
            return 0.0, 0
        left, stop_seconds, stops = collect(
            self._pid,
            self._uncollected,
            self._finder,
            any_state=any_state,
            patience_seconds=patience_seconds,
            proc=self._proc,
        )
        for ns_pid in set(self._uncollected) - set(left):
            if self._guardian is not None:
                self._guardian.gone(ns_pid)
        self._uncollected = left
        return stop_seconds, stops

    def close(self) -> None:
        """Collect what is left, waking the target if it sleeps; may be called twice."""
        if self._guardian is None:
            return
        self._collect_pending(any_state=False, patience_seconds=_COLLECT_PATIENCE_SECONDS)
        self._collect_pending(any_state=True, patience_seconds=_LAST_PATIENCE_SECONDS)
        self._guardian.close()
        self._guardian = None
