"""Events of each thread on each CPU, one ring a CPU: new threads inherit them.

Rings belong to events of our own, that count nothing: so they outlive those of the target.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import select
import threading
from collections import defaultdict
from collections.abc import Sequence

from memsampd import _core
from memsampd.errors import CapabilityError, MemsampdError, TargetError
from memsampd.sampler.perf.groups import SamplerOptions, close_all
from memsampd.sampler.perf.refusal import explain_refusal
from memsampd.sampler.perf.rings import (
    Drained,
    NotInheritedError,
    count,
    gather,
    join,
    map_ring,
    note_unsampled,
)
from memsampd.sampler.process.status import list_threads


class PerCpuRings:
    """An inherited event for each thread on each CPU; one ring a CPU.

    Args:
        options: how to open events.
        cpus: CPUs that threads can run on; those that are offline are left out.
    """

    def __init__(self, options: SamplerOptions, cpus: Sequence[int]) -> None:
        self.notes: tuple[str, ...] = ()
        self.ended = False
        self.ring_bytes = options.ring_bytes
        self._options = options
        self._inherit = _core.INHERIT_ALL if options.follow_forks else _core.INHERIT_THREADS
        self._cpus = list(cpus)  # less those that are offline
        self._rings: dict[int, tuple[int, _core.PerfRing]] = {}  # and whose they are, by CPU
        # Groups by CPU; the first one's sampled event is polled.
        self._groups: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        self._opened: set[int] = set()
        self._inherited: set[int] = set()
        self._early: list[Drained] = []  # taken while opening
        self._rng = random.Random(options.seed)
        self._asked_threads = self._most_threads = 0  # for so many there are descriptors
        try:
            self._open_all()
            if not any(self._groups.values()):
                raise TargetError(f"process {options.pid} is gone")
        except BaseException:
            self.close()
            raise

    def _open_all(self) -> None:
        """Open events until the list of threads holds none that has no event."""
        self._opened.clear()
        self._inherited.clear()
        while True:
            threads = list_threads(self._options.pid)
            new = [tid for tid in threads if tid not in self._opened | self._inherited]
            if new and self._opened:
                # Born since: by a thread that has its event already, then it inherited it and
                # the kernel says so. A second event would count it twice.
                self._learn_inherited()
                new = [tid for tid in new if tid not in self._inherited]
            if not new:
                break
            for tid in new:
                self._open_thread(tid)
                self._opened.add(tid)

    def _open_some(self, threads: Sequence[int]) -> None:
        """Open events of threads chosen at random: there are no descriptors for all of them."""
        self._opened.clear()
        self._inherited.clear()
        for tid in self._rng.sample(threads, self._most_threads):
            self._open_thread(tid)
        raise CapabilityError("there are not enough descriptors: each time others are chosen")

    def _learn_inherited(self) -> None:
        # A new thread is listed a moment before the kernel writes its record.
        select.poll().poll(2)
        drained = self._taken()
        self._early.append(drained)
        self._inherited |= {event.tid for event in drained.events if event.kind == "fork"}

    def _open_thread(self, tid: int) -> None:
        for cpu in tuple(self._cpus):
            try:
                groups = self._open_groups(tid, cpu)
            except OSError as error:
                if error.errno == errno.ESRCH:
                    return  # the thread has exited
                if error.errno == errno.ENODEV:
                    self._cpus.remove(cpu)  # offline
                    continue
                raise self._explained(error) from error
            self._groups[cpu] += groups
            if cpu not in self._rings:
                self._rings[cpu] = self._new_ring(cpu)
            for sampled, *_ in groups:
                fcntl.ioctl(sampled, _core.PERF_EVENT_IOC_SET_OUTPUT, self._rings[cpu][0])

    def _explained(self, error: OSError) -> MemsampdError:
        return explain_refusal(error, f"sampling process {self._options.pid}")

    def _new_ring(self, cpu: int) -> tuple[int, _core.PerfRing]:
        try:
            event = self._options.open_idle(threading.get_native_id(), cpu)
        except OSError as error:
            raise self._explained(error) from error
        try:
            return event, map_ring(event, self._options)
        except CapabilityError:
            os.close(event)
            raise

    def _open_groups(self, tid: int, cpu: int) -> list[tuple[int, ...]]:
        options = self._options
        try:
            return options.open_groups(tid, cpu, self._inherit)
        except OSError as error:
            if error.errno != errno.EINVAL or self._inherit != _core.INHERIT_THREADS:
                raise
            if options.fields & _core.SAMPLE_COUNTS:
                raise NotInheritedError(
                    "new threads inherit counters from Linux 6.13 on"
                ) from error
        self._inherit = _core.INHERIT_ALL
        self.notes = (
            "Linux before 5.13: child processes are sampled too and their samples thrown away",
        )
        return self._open_groups(tid, cpu)

    def wait(self, timeout_seconds: float) -> None:
        """Wait until a ring has filled up to its watermark, at most so long."""
        # A dead thread's descriptor is always ready: poll one that is still alive. Any will do, for
        # the events of a CPU share its ring.
        while not self.ended:
            poll = select.poll()
            live = {groups[0][0]: groups for groups in self._groups.values() if groups}
            for file in live:
                poll.register(file, select.POLLIN)
            self.ended = not live
            ready = poll.poll(max(0.0, timeout_seconds) * 1000) if live else []
            dead = [live[file] for file, mask in ready if mask & select.POLLHUP]
            for groups in dead:
                close_all([groups.pop(0)])
            if not dead:
                return

    def drain(self) -> Drained:
        """Empty all rings."""
        drained = [*self._early, self._taken()]
        self._early = []
        return join(drained)

    def peek(self) -> Drained:
        """Tell what is in the rings, and leave it there."""
        return self._taken(leaves=True)

    def _taken(self, *, leaves: bool = False) -> Drained:
        return gather((ring for _, ring in self._rings.values()), leaves=leaves)

    def sampling_files(self) -> list[int]:
        """Descriptors of the events that are sampled."""
        return [group[0] for groups in self._groups.values() for group in groups]

    def opened_threads(self) -> list[int]:
        """Threads whose events these are; others have inherited theirs."""
        return list(self._opened)

    def suspend(self) -> int:
        """Sample no more for now; CPU time that was sampled since the last ``resume``, ns."""
        sampled_ns = count(self.sampling_files())
        self._close_groups()
        return sampled_ns

    def resume(self) -> None:
        """Sample again, after ``suspend``."""
        threads = list_threads(self._options.pid)
        try:
            is_short = len(threads) > self._most_threads
            if is_short or len(threads) != self._asked_threads:  # it takes long to be asked
                self._asked_threads = len(threads)
                files = self._options.files_of_a_thread * len(self._cpus)
                self._most_threads = self._options.affordable(len(threads), files, len(self._rings))
            if len(threads) > self._most_threads:
                self._open_some(threads)
            self._open_all()
        except (CapabilityError, TargetError) as error:
            note_unsampled(self, error)
        self.ended = not any(self._groups.values())

    def _close_groups(self) -> None:
        for groups in self._groups.values():
            close_all(groups)
        self._groups.clear()

    def close(self) -> None:
        """Release everything; may be called twice."""
        self._close_groups()
        for event, ring in self._rings.values():
            ring.close()
            os.close(event)
        self._rings.clear()
        self.ended = True
