"""Executing a shadow in translated code that records what it references: near native speed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from memsampd import _core
from memsampd.sampler.process.identity import PROC
from memsampd.sampler.process.maps import Mapping, read_maps
from memsampd.sampler.records import BurstEnd
from memsampd.sampler.shadow.collectors import Collector, Rows
from memsampd.sampler.shadow.emulation import emulation_of
from memsampd.sampler.shadow.endings import end_detail
from memsampd.sampler.shadow.executors import Execution
from memsampd.sampler.shadow.forms import FormDecoder
from memsampd.sampler.shadow.snapshots import Shadow
from memsampd.sampler.shadow.stepping import share_one_cpu

_WRITABLE_CODE_MAXIMUM = 64
# Between what kernels and runtimes use by themselves (executables at 0x55..., libraries at 0x7f...,
# Go's heap at 0xc0_0000_0000, shadow memories of sanitizers below 16 TiB).
_AREA_CANDIDATES = [terabytes << 40 for terabytes in (32, 40, 48, 24, 20, 64)]


class TranslatingExecutor:
    """Runs shadows in translated code (:class:`memsampd.sampler.shadow.executors.ShadowExecutor`).

    Translations are kept from burst to burst; at the start of each, code that has changed since is
    dropped.

    Args:
        proc: root of the proc file system.
        emulate: go on behind system calls whose result is known without making them.
    """

    name = "translate"

    def __init__(self, proc: Path = PROC, *, emulate: bool = True) -> None:
        self._proc = proc
        self._emulate = emulate
        self._translator = _core.Translator()
        self._forms = FormDecoder()
        self._area_address = 0
        self._memory = -1

    def run(
        self,
        shadow: Shadow,
        max_accesses: int,
        deadline_seconds: float,
        collector: Collector | None = None,
        course_accesses: int = 0,
    ) -> Execution:
        """Run a stopped shadow until it is full, ends or the time is up."""
        collector = Rows() if collector is None else collector
        give_up = time.monotonic() + deadline_seconds
        before = os.sched_getaffinity(0)
        with _opened(shadow, self._proc) as (memory, pidfd):
            self._memory = memory
            try:
                share_one_cpu(shadow, before, self._proc)
                mappings = read_maps(shadow.pid, self._proc).mappings
                self._translator.begin(
                    shadow.pid,
                    pidfd,
                    memory,
                    shadow.syscall_address,
                    shadow.scratch_address,
                    self._place(mappings),
                    _writable_code(mappings),
                    emulation_of(shadow, self._proc) if self._emulate else None,
                    max_accesses,
                    collector.line_shift,
                    collector.counter,
                    give_up,
                )
                execution = self._execute(collector)
                return self._with_visits(execution) if course_accesses else execution
            finally:
                os.sched_setaffinity(0, before)

    def cancel(self) -> None:
        """End the present run and all later ones at once; from any thread."""
        self._translator.cancel()

    def close(self) -> None:
        """Give back the memory of translations; a later run makes them anew."""
        self._translator.close()

    def guide(self, executions: int = _core.HOT_EXECUTIONS) -> None:
        """Lay translations out anew, along the ways that code took in the runs so far.

        Runs do so of themselves, once most of what they execute was laid out without knowing how
        it would run.

        Args:
            executions: ways taken less often count for nothing; kept for later layouts.
        """
        self._translator.guide(executions)

    def costs(self) -> dict[str, float]:
        """Counts and times of all runs so far, by name (seconds; instructions; bytes of code)."""
        return self._translator.costs()

    def registers(self) -> bytes:
        """What the program would see in its registers where the last run ended.

        Returns:
            A struct user_regs_struct, as :attr:`Shadow.registers`.
        """
        return self._translator.registers()

    def _execute(self, collector: Collector) -> Execution:
        before = self._translator.costs()["run_seconds"]
        while True:
            end, ip, number = self._translator.run()
            if end == "form":
                key, sample, operands_bytes = self._translator.wanted_form()
                form = self._forms.describe(key, sample, operands_bytes)
                self._translator.add_form(form.tobytes())
                continue
            collector.take(self._translator)
            if end != "chunk":
                break
        reason, detail = (
            (BurstEnd.UNSUPPORTED, "a store into code that has run")
            if end == "modified"
            else (BurstEnd(end), end_detail(BurstEnd(end), ip, number, self._memory))
        )
        return Execution(
            collector.kept(),
            collector.rows,
            collector.instructions,
            collector.prefetches,
            reason,
            detail,
            self._translator.costs()["run_seconds"] - before,
            self._translator.emulated_calls(),
        )

    def _with_visits(self, execution: Execution) -> Execution:
        ip, times = self._translator.visits()
        return replace(
            execution,
            code_ip=np.frombuffer(ip, np.uint64),
            code_times=np.frombuffer(times, np.uint64),
        )

    def _place(self, mappings: Sequence[Mapping]) -> int:
        """A free place for the translations: the same as before if that is still free."""
        for address in (self._area_address, *_AREA_CANDIDATES):
            end = address + _core.AREA_BYTES
            if address and not any(m.start < end and address < m.end for m in mappings):
                self._area_address = address
                return address
        raise OSError("no room for translated code in the shadow")


def _writable_code(mappings: Sequence[Mapping]) -> bytes:
    """Where programs that make code at run time may write it: pairs of start and end."""
    ranges = [(m.start, m.end) for m in mappings if m.is_executable and m.perms[1] == "w"]
    if len(ranges) > _WRITABLE_CODE_MAXIMUM:
        raise OSError(f"{len(ranges)} areas of the program are code and writable")
    return np.array(ranges, np.uint64).tobytes()


@contextmanager
def _opened(shadow: Shadow, proc: Path) -> Iterator[tuple[int, int]]:
    """Descriptors of a shadow's memory and of itself."""
    memory = os.open(proc / str(shadow.pid) / "mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        pidfd = os.pidfd_open(shadow.pid)
        try:
            yield memory, pidfd
        finally:
            os.close(pidfd)
    finally:
        os.close(memory)
