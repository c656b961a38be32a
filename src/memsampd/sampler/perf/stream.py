"""Samples of a process in order of time, whatever events they are of."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from memsampd.closing import Closing
from memsampd.errors import CapabilityError, TargetError
from memsampd.machines.cpulist import online_cpus
from memsampd.sampler.perf.ended import Ended
from memsampd.sampler.perf.groups import SamplerOptions
from memsampd.sampler.perf.ring_layouts import open_rings
from memsampd.sampler.perf.rings import SAMPLE_DTYPE, Drained, TaskEvent
from memsampd.sampler.process.identity import ProcessHandle


class SampleStream(Closing):
    """Opens events on all threads of a process, and reads them.

    Args:
        options: which, and how.
        cpus: CPUs to sample on; None: all that are online.

    Raises:
        TargetError: the process is gone or not ours.
        CapabilityError: perf events are refused; with the cause and what to do.
    """

    def __init__(self, options: SamplerOptions, cpus: Sequence[int] | None = None) -> None:
        self._pid = options.pid
        self._follow_forks = options.follow_forks
        self._held = np.empty(0, SAMPLE_DTYPE)
        self._events: list[TaskEvent] = []
        self._ended = Ended()
        self._looked_at = 0  # samples that are to be read
        self._process: ProcessHandle | None = None
        self._is_suspended = self._is_gone = False
        self._rings = open_rings(options, online_cpus() if cpus is None else cpus)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not as it should be, a sentence each."""
        return self._rings.notes

    @property
    def ring_bytes(self) -> int:
        """Size of each ring, as it could be had."""
        return self._rings.ring_bytes

    @property
    def ended(self) -> bool:
        """Whether the last ``read`` found no thread left to sample (or the stream is closed).

        Where sampling goes on after a pause, events may be refused, to be tried again after the
        next one: that is no end.
        """
        if self._is_gone or not self._rings.ended:
            return self._is_gone
        return self._process is None or not self._process.alive()

    def read(self, timeout_seconds: float) -> Drained:
        """Wait for samples, at most so long, and return all that have come, in order of time.

        Task events are kept for :meth:`take_events`.
        """
        self._looked_at = 0
        if self._is_suspended:  # no event tells of its end
            self._is_gone |= self._process is not None and not self._process.alive()
        else:
            self._rings.wait(timeout_seconds)
        # Rings are read one after the other. What is younger than this moment waits for the
        # next read, else a sample of the first ring could come out later than a younger one of
        # the second.
        until_ns = time.monotonic_ns()
        drained = self._rings.drain()
        self._events.extend(sorted(drained.events, key=lambda event: event.time_seconds))
        samples = self._after_held(drained)
        due = len(samples)
        if not self.ended and due and samples["time_ns"].item(-1) > until_ns:
            due = int(np.searchsorted(samples["time_ns"], until_ns, side="right"))
        self._held, samples = samples[due:], samples[:due]
        # A thread that executes a program goes on under the id of the first one, which has ended.
        execs = {event.tid for event in drained.events if event.kind == "exec"}
        ended = {event.tid for event in drained.events if event.kind == "exit"} - execs
        gone = tuple(self._ended.at_read(sorted(ended)))
        return replace(drained, samples=self._asked_for(samples), events=(), gone=gone)

    def latest(
        self, count: int, choose: Callable[[NDArray[np.void]], NDArray[np.void]]
    ) -> NDArray[np.void]:
        """Return the latest samples of the process itself that are to be read, in order of time.

        None where fewer have come since the last look or read, or an exec of the process among
        them.

        Args:
            count: how many.
            choose: which samples count.
        """
        found = self._rings.peek()
        samples = choose(self._own(self._after_held(found)))
        looked_at, self._looked_at = self._looked_at, len(samples)
        has_exec = any(each.kind == "exec" and each.pid == self._pid for each in found.events)
        is_enough = len(samples) - looked_at >= count and not has_exec
        return samples[-count:] if is_enough else samples[:0]

    def _after_held(self, drained: Drained) -> NDArray[np.void]:
        """Samples that waited, and these, in order of time."""
        held = self._held
        return _in_order(np.concatenate([held, drained.samples]) if len(held) else drained.samples)

    def _asked_for(self, samples: NDArray[np.void]) -> NDArray[np.void]:
        """Without those of child processes, unless these are followed."""
        return samples if self._follow_forks else self._own(samples)

    def _own(self, samples: NDArray[np.void]) -> NDArray[np.void]:
        is_own = samples["pid"] == self._pid
        return samples if is_own.all() else samples[is_own]

    def take_events(self) -> tuple[TaskEvent, ...]:
        """Births, ends and execs of threads that came with the samples read since last asked."""
        events, self._events = tuple(self._events), []
        return events

    def sampling_files(self) -> list[int]:
        """Descriptors of the events that are sampled."""
        return self._rings.sampling_files()

    def opened_threads(self) -> list[int]:
        """Threads whose events these are; others have inherited theirs."""
        return self._rings.opened_threads()

    def suspend(self) -> int:
        """Sample no more for now; CPU time that was sampled since the last ``resume``, ns."""
        self._is_suspended = True
        if self._process is None:
            try:
                self._process = ProcessHandle(self._pid)
            except TargetError:
                self._is_gone = True
            except CapabilityError:  # it is tried again at the next pause
                pass
        return self._rings.suspend()

    def resume(self) -> None:
        """Sample again, after ``suspend``."""
        if self._is_suspended:
            self._is_suspended = False
            self._rings.resume()

    def close(self) -> None:
        """Release every descriptor and mapping; may be called twice."""
        self._rings.close()
        if self._process is not None:
            self._process.close()


def _in_order(samples: NDArray[np.void]) -> NDArray[np.void]:
    """Samples by time: those of one ring are in order already."""
    times = samples["time_ns"]
    if (times[1:] >= times[:-1]).all():
        return samples
    return samples[np.argsort(times, kind="stable")]
