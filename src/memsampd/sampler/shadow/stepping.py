"""Executing a shadow instruction by instruction, by ptrace: slow, exact, the reference."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

from memsampd import _core
from memsampd.sampler.process.identity import PROC
from memsampd.sampler.records import BurstEnd
from memsampd.sampler.shadow.collectors import Collector, Rows
from memsampd.sampler.shadow.decoder import RecipeDecoder
from memsampd.sampler.shadow.emulation import emulation_of
from memsampd.sampler.shadow.endings import end_detail, read_code
from memsampd.sampler.shadow.executors import Execution
from memsampd.sampler.shadow.snapshots import Shadow, last_cpu


class SteppingExecutor:
    """Steps shadows (:class:`memsampd.sampler.shadow.executors.ShadowExecutor`).

    Decoded instructions are kept from burst to burst; the native core compares their bytes with the
    code at every step, so code that was rewritten is decoded anew.

    Args:
        proc: root of the proc file system.
        emulate: go on behind system calls whose results are known.
    """

    name = "step"

    def __init__(self, proc: Path = PROC, *, emulate: bool = True) -> None:
        self._proc = proc
        self._emulate = emulate
        self._stepper = _core.Stepper()
        self._memory = -1
        self._decoder = RecipeDecoder(lambda ip, size: read_code(self._memory, ip, size))

    def run(
        self,
        shadow: Shadow,
        max_accesses: int,
        deadline_seconds: float,
        collector: Collector | None = None,
        course_accesses: int = 0,
    ) -> Execution:
        """Step a stopped shadow until it is full, ends or the time is up."""
        give_up = time.monotonic() + deadline_seconds
        self._memory = os.open(self._proc / str(shadow.pid) / "mem", os.O_RDONLY | os.O_CLOEXEC)
        before = os.sched_getaffinity(0)
        self._stepper.emulate(emulation_of(shadow, self._proc) if self._emulate else None)
        try:
            share_one_cpu(shadow, before, self._proc)
            started = time.monotonic()
            while True:
                end, ip, number = self._stepper.run(shadow.pid, max_accesses, give_up)
                if end != "decode":
                    break
                recipes = self._decoder.block(ip)
                if len(recipes) == 0:
                    end, number = "fault", signal.SIGSEGV
                    break
                self._stepper.add(recipes.tobytes())
            collector = Rows() if collector is None else collector
            collector.take(self._stepper)
            seconds = time.monotonic() - started
            return Execution(
                collector.kept(),
                collector.rows,
                collector.instructions,
                collector.prefetches,
                BurstEnd(end),
                end_detail(BurstEnd(end), ip, number, self._memory),
                seconds,
                self._stepper.emulated_calls(),
            )
        finally:
            os.sched_setaffinity(0, before)
            os.close(self._memory)

    def cancel(self) -> None:
        """End the present run and all later ones at once; from any thread."""
        self._stepper.cancel()

    def close(self) -> None:
        """Nothing is held."""


def share_one_cpu(shadow: Shadow, allowed: set[int], proc: Path) -> None:
    """A step that stays on one CPU takes a third of the time of one that wakes another.

    Not on the CPU that the target uses, if there is another.
    """
    others = (allowed - {last_cpu(shadow.tid, proc)}) or allowed
    here = last_cpu(threading.get_native_id(), proc)
    cpu = here if here in others else min(others)
    os.sched_setaffinity(0, {cpu})
    os.sched_setaffinity(shadow.pid, {cpu})
