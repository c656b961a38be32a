"""The events that are opened on each thread, and how."""

from __future__ import annotations

import fcntl
import math
import os
import resource
import threading
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from memsampd import _core
from memsampd.errors import CapabilityError
from memsampd.machines.pmu import HardwareEvent

MORE_FILES = "raise the limit of open files (ulimit -Hn, LimitNOFILE=)"
"""What to do where there are too few descriptors."""
TASK_CLOCK = HardwareEvent("task clock", _core.PERF_TYPE_SOFTWARE, _core.PERF_COUNT_SW_TASK_CLOCK)


class EventGroup(msgspec.Struct, frozen=True):
    """An event that is sampled, and others that are counted and read at each sample.

    Attributes:
        sampled: on the CPUs that have it.
        counted: at most SAMPLE_COUNTS_MOST - 1.
    """

    sampled: HardwareEvent = TASK_CLOCK
    counted: tuple[HardwareEvent, ...] = ()


class SamplerOptions(msgspec.Struct, frozen=True):
    """How each event is opened.

    Attributes:
        pid: the target.
        period: of the sampled event, between samples; ns of CPU time for the task clock.
        wakeup_bytes: bytes in a ring that wake a waiting reader.
        ring_bytes: size of a ring, at most; a power of two of pages.
        follow_forks: sample child processes too.
        most_files: descriptors that may be opened for this target; None: what the process may.
        groups: events on each thread.
        fields: what is in a sample besides the instruction, the thread and the time: SAMPLE_
            constants of the core.
        seed: of the choice among threads where not all can be sampled.
    """

    pid: int
    period: int
    wakeup_bytes: int
    ring_bytes: int
    follow_forks: bool
    most_files: int | None = None
    groups: tuple[EventGroup, ...] = (EventGroup(),)
    fields: int = _core.SAMPLE_REGISTERS
    seed: int = 0

    @property
    def files_of_a_thread(self) -> int:
        """Descriptors that a thread needs on one CPU, at most."""
        return sum(1 + len(group.counted) for group in self.groups)

    def halved(self) -> SamplerOptions:
        """The same with rings half as large."""
        ring_bytes = self.ring_bytes // 2
        wakeup_bytes = min(self.wakeup_bytes, ring_bytes // 2)
        return replace(self, ring_bytes=ring_bytes, wakeup_bytes=wakeup_bytes)

    def open_groups(self, tid: int, cpu: int, inherit: int) -> list[tuple[int, ...]]:
        """Open the events of a thread on a CPU, or on all (-1).

        Returns:
            Descriptors of each group, the sampled event's first; none for a CPU that has no such
            unit.

        Raises:
            OSError: as perf_event_open(2).
        """
        groups: list[tuple[int, ...]] = []
        try:
            for group in self.groups:
                if cpu < 0 or not group.sampled.cpus or cpu in group.sampled.cpus:
                    groups.append(self._open_group(group, tid, cpu, inherit))
        except OSError:
            close_all(groups)
            raise
        return groups

    def _open_group(self, group: EventGroup, tid: int, cpu: int, inherit: int) -> tuple[int, ...]:
        fds: list[int] = []
        try:
            waits = bool(group.counted)
            fds.append(self._open_event(group.sampled, tid, cpu, inherit, -1, waits=waits))
            for event in group.counted:
                fds.append(self._open_event(event, tid, cpu, inherit, fds[0]))
            if waits:  # all begin at once: what is read at the first sample is of one time
                fcntl.ioctl(fds[0], _core.PERF_EVENT_IOC_ENABLE, 0)
        except OSError:
            close_all([tuple(fds)])
            raise
        return tuple(fds)

    def _open_event(
        self,
        event: HardwareEvent,
        tid: int,
        cpu: int,
        inherit: int,
        leader: int,
        *,
        waits: bool = False,
    ) -> int:
        is_sampled = leader < 0
        fd = _core.perf_open_sampler(
            tid,
            cpu,
            self.period if is_sampled else 0,
            self.wakeup_bytes,
            inherit,
            type=event.type,
            config=event.config,
            config1=event.config1,
            config2=event.config2,
            bp_type=event.bp_type,
            precise_ip=event.precise_level if is_sampled else 0,
            sample_type=self.fields,
            group=leader,
            exclude_kernel=event.excludes_kernel,
            disabled=waits or bool(event.filter),
        )
        if event.filter:
            try:
                fcntl.ioctl(fd, _core.PERF_EVENT_IOC_SET_FILTER, event.filter.encode() + b"\0")
                if not waits:
                    fcntl.ioctl(fd, _core.PERF_EVENT_IOC_ENABLE, 0)
            except OSError:
                os.close(fd)
                raise
        return fd

    def open_idle(self, tid: int, cpu: int) -> int:
        """Open an event that counts nothing, for its ring.

        Raises:
            OSError: as perf_event_open(2).
        """
        return self._open_event(TASK_CLOCK, tid, cpu, _core.INHERIT_NOTHING, -1, waits=True)

    def check_kinds(self) -> None:
        """Check that no event is sampled twice where events are not bound to a CPU.

        Raises:
            CapabilityError: one is, beside the counters of each kind of core.
        """
        sampled = [group.sampled for group in self.groups]
        events = {(event.type, event.config, event.config1) for event in sampled}
        if len(events) < len(sampled):
            raise CapabilityError(
                "counters of several kinds of cores cannot be read here with the timer's samples",
                "--clock registers; Linux 6.13 and enough descriptors (ulimit -Hn) allow it",
            )

    def affordable(self, threads: int, files: int, taken: int) -> int:
        """Of so many more threads, how many can be sampled; the soft limit is raised for them.

        Args:
            threads: so many.
            files: descriptors that each of them needs.
            taken: descriptors that are open for the target.
        """
        room = files_left()
        if self.most_files is not None:
            room = min(room, self.most_files - taken)
        most = int(max(min(threads * files, room), 0) // files)
        allow_open_files(most * files)
        return most

    def check_files(self, files: int) -> None:
        """Check that so many descriptors may be opened for the target.

        Raises:
            CapabilityError: others are to have some, too.
        """
        if self.most_files is not None and files > self.most_files:
            raise CapabilityError(
                f"process {self.pid} needs more than {self.most_files} descriptors, its share",
                MORE_FILES,
            )


def own_thread(
    event: HardwareEvent,
    period: int,
    ring_bytes: int,
    fields: int,
    inherit: int = _core.INHERIT_NOTHING,
) -> list[tuple[int, ...]]:
    """Open an event of the calling thread, as ``open_groups`` does, for trials and measurements.

    Raises:
        OSError: as perf_event_open(2).
    """
    options = SamplerOptions(
        os.getpid(),
        period,
        ring_bytes // 2,
        ring_bytes,
        follow_forks=False,
        groups=(EventGroup(event),),
        fields=fields,
    )
    return options.open_groups(threading.get_native_id(), -1, inherit)


def close_all(groups: Iterable[tuple[int, ...]]) -> None:
    """Close the descriptors of groups, the sampled event's last."""
    for group in groups:
        for fd in reversed(group):
            os.close(fd)


def files_left() -> float:
    """How many more files can be opened at most, if others are to have some, too."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if hard == resource.RLIM_INFINITY else max(hard - _taken_files(), 0)


def _taken_files() -> int:
    """Those that are open, and what the rest of the process, and new threads, may want."""
    told = os.stat("/proc/self/fd").st_size  # from Linux 6.2 on; a list of thousands takes long
    return (told or len(os.listdir("/proc/self/fd"))) + 128


def allow_open_files(more: int) -> bool:
    """Raise the soft limit of open files, if needed, so that so many more can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _taken_files() + more
    if hard != resource.RLIM_INFINITY and needed > hard:
        return False
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return True
