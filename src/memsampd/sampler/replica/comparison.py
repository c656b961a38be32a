"""Translated code against single steps: two runs from one hold must record the same."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from memsampd import _core
from memsampd.errors import CaptureError
from memsampd.sampler.process.identity import PROC
from memsampd.sampler.records import AccessChunk
from memsampd.sampler.replica.collectors import Rows
from memsampd.sampler.replica.decoder import RecipeDecoder
from memsampd.sampler.replica.endings import read_code
from memsampd.sampler.replica.forms import FormDecoder
from memsampd.sampler.replica.target import read_traits

_RETRY_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class Run:
    """What one run from a hold recorded.

    Attributes:
        rows: data references in program order.
        instructions: instructions executed.
        prefetches: software prefetches met.
        end: why it ended, as the core says it ("full", "syscall", "hold", ...).
        ip: address of the instruction that comes next.
        number: of the system call or signal that ended it.
        registers: of the program at its end (translated runs; struct user_regs_struct).
    """

    rows: AccessChunk
    instructions: int
    prefetches: int
    end: str
    ip: int
    number: int
    registers: bytes = b""


class HeldReplica:
    """A replica whose target is held by the caller, to run it more than once from one moment.

    All calls come from one thread. Unlike ``ReplicaSource`` it holds the target for as long as it
    takes: for tests and benchmarks of the translator.

    Args:
        pid: the target.
        proc: root of the proc file system.
        can_query: see ``ReplicaSource``.
        may_keep: see ``ReplicaSource``.
    """

    def __init__(
        self,
        pid: int,
        proc: Path = PROC,
        *,
        can_query: bool = True,
        may_keep: bool = True,
    ) -> None:
        traits = read_traits(pid, proc)
        self._replica = _core.Replica(
            pid,
            traits.area_address,
            can_query=can_query,
            supplies_pages=traits.supplies_pages,
            shares_clock=traits.shares_clock,
            may_execute=True,
            may_keep=may_keep,
        )
        self._memory = os.open(proc / str(pid) / "mem", os.O_RDONLY | os.O_CLOEXEC)
        self._forms = FormDecoder()
        self._recipes = RecipeDecoder(lambda ip, size: read_code(self._memory, ip, size))

    @contextmanager
    def holding(self, tid: int, patience_seconds: float = 1.0) -> Iterator[None]:
        """Hold a thread that runs; it is released at the end, whatever happens.

        Raises:
            CaptureError: it did not run outside of the kernel in that time.
        """
        give_up = time.monotonic() + patience_seconds
        while (status := self._replica.hold(tid)) != "ok":
            if time.monotonic() > give_up or status in ("gone", "refused", "not-64-bit"):
                raise CaptureError(status, f"thread {tid} cannot be held: {status}")
            time.sleep(_RETRY_SECONDS)
        try:
            yield
        finally:
            self._replica.release()

    def translated(self, max_accesses: int, seconds: float = 60.0) -> Run:
        """Run from the held moment in translated code."""
        self._replica.place(max_accesses, False)
        give_up = time.monotonic() + seconds
        while True:
            end, ip, number = self._replica.go(max(give_up - time.monotonic(), 0.0))
            if end != "cold":
                break
            self._describe()
        rows = Rows()
        self._replica.begin_take(max_accesses, 0)
        while (chunk := self._replica.take()) is not None:
            rows.take(chunk)
        return Run(
            rows.kept(),
            rows.instructions,
            rows.prefetches,
            end,
            ip,
            number,
            self._replica.registers(),
        )

    def stepped(self, max_accesses: int, seconds: float = 60.0) -> Run:
        """Run from the held moment instruction by instruction."""
        self._replica.place(max_accesses, True)
        give_up = time.monotonic() + seconds
        while True:
            end, ip, number = self._replica.step(max_accesses, max(give_up - time.monotonic(), 0.0))
            if end != "decode":
                break
            recipes = self._recipes.block(ip)
            if len(recipes) == 0:
                end, number = "fault", signal.SIGSEGV
                break
            self._replica.add_recipes(recipes.tobytes())
        rows = Rows()
        rows.take(self._replica.take_steps())
        return Run(rows.kept(), rows.instructions, rows.prefetches, end, ip, number)

    def guide(self, executions: int = _core.HOT_EXECUTIONS) -> None:
        """Lay translations out anew, along the ways that code took in the runs so far."""
        self._replica.guide(executions)

    def costs(self) -> dict[str, float]:
        """Counts and times of all runs so far, by name."""
        return self._replica.costs()

    def features(self) -> dict[str, bool]:
        """What the kernel offers: see ``ReplicaSource``."""
        return self._replica.features()

    def close(self) -> None:
        """End the replica; may be called twice."""
        self._replica.close()
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    def _describe(self) -> None:
        key, sample, operands_bytes = self._replica.wanted_form()
        if key == 0:
            raise CaptureError("full", "no room for more translations")
        self._replica.add_forms(self._forms.describe(key, sample, operands_bytes).tobytes())


@contextmanager
def held_replica(
    pid: int, proc: Path = PROC, *, can_query: bool = True, may_keep: bool = True
) -> Iterator[HeldReplica]:
    """A replica that is closed at the end."""
    with closing(HeldReplica(pid, proc, can_query=can_query, may_keep=may_keep)) as replica:
        yield replica
