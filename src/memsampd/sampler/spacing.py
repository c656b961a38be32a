"""How far apart the data lie that a thread is found at: what the same code works on, in a word.

Branch samples tell what code runs, not on what data: the same loop over 16 KiB and over 16 MiB has
one branch vector. But a sample has the thread's registers, too. Where the instruction before it, or
one of the next, makes an access, they tell its address; and addresses of some tens of samples tell
how large an area they are of.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from memsampd import _core
from memsampd.sampler.data_operands import NOTHING, DataOperands, Operand, packed
from memsampd.sampler.latest import Latest
from memsampd.sampler.process.code_names import ReadMemory
from memsampd.sampler.process.memory import entered
from memsampd.sampler.records import BranchSamples, Spacing, no_registers

_SAMPLES = 512  # that are remembered: of some windows
_LEAST_ADDRESSES = 8
_ABOUT = (25, 12)  # samples before a moment and after it: together as many as in a window
_KNOWN = 4096  # instructions that are remembered
_DECODED = 16  # in a window at most: the decoder takes some 40 us for each
_LEAST_TIMES = 2  # code that was sampled once may never be again
_KNOWN_PART, _LEAST_TIMES_MORE = 0.75, 5  # where so many samples are in code that is known

_UNKNOWN = packed(Operand(NOTHING, NOTHING, 0, 0))
_USER_ADDRESSES = 1 << 47


class DataSpacing:
    """Remembers the latest samples of a process, and tells how far apart its data lay.

    Args:
        pid: the process; samples of others tell nothing.
        read_code: reads its code; entered while it does, if it is a context manager.
    """

    def __init__(self, pid: int, read_code: ReadMemory) -> None:
        self._pid = pid
        self._operands = DataOperands(read_code)
        self._reading = entered(read_code)
        self._known: dict[int, bytes] = {}  # operands, packed
        self._ip = Latest(_SAMPLES, np.uint64)
        self._tid = Latest(_SAMPLES, np.int64)
        self._time = Latest(_SAMPLES, np.float64)  # ascending
        self._registers = Latest(_SAMPLES, np.uint64, no_registers().shape[1])

    def add(self, samples: BranchSamples) -> None:
        """Remember samples; such as have no registers tell nothing."""
        if len(samples.registers) != len(samples) or not len(samples):
            return
        is_own = samples.pid == self._pid
        self._ip.add(samples.ip[is_own])
        self._tid.add(samples.tid[is_own])
        self._time.add(samples.time_seconds[is_own])
        self._registers.add(samples.registers[is_own])

    def between(self, start_seconds: float, end_seconds: float) -> Spacing | None:
        """Return the spacing from one moment to another; None if too few samples tell it."""
        return self._spacing(self._within(start_seconds, end_seconds))

    def about(self, time_seconds: float) -> Spacing | None:
        """Return that of samples about a moment, half of them before it; of fewer if it changes."""
        at = int(self._time.rows.searchsorted(time_seconds))
        found = (self._spacing(slice(max(at - most, 0), at + most)) for most in _ABOUT)
        return next((each for each in found if each is not None), None)

    def _spacing(self, those: slice) -> Spacing | None:
        ips = self._ip.rows[those].tolist()
        if len(ips) < _LEAST_ADDRESSES:
            return None
        self._learn(ips)
        operands = b"".join(self._known_at(ips))
        found = _core.spacing_of(_core.data_addresses(operands, self._registers.rows[those]))
        return None if found is None else Spacing(*found)

    def _within(self, start_seconds: float, end_seconds: float) -> slice:
        """Which of the samples that are remembered lie between two moments, both included."""
        time = self._time.rows
        first = int(time.searchsorted(start_seconds))
        return slice(first, int(time.searchsorted(end_seconds, side="right")))

    def _known_at(self, ips: list[int]) -> list[bytes]:
        """What tells an address at each, as the core has it."""
        return [self._known.get(ip, _UNKNOWN) for ip in ips]

    def addresses(
        self, start_seconds: float, end_seconds: float
    ) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """Return threads and addresses of data that samples tell, each of shape (n,).

        Of code that :meth:`between` knows, and where no step is needed to tell one. They are of
        accesses that threads were waiting for, rather than of any: those that miss are more likely
        to be among them.
        """
        those = self._within(start_seconds, end_seconds)
        known = self._known_at(self._ip.rows[those].tolist())
        # An operand with steps is longer.
        plain = b"".join([each if len(each) == len(_UNKNOWN) else _UNKNOWN for each in known])
        told = _core.data_addresses(plain, self._registers.rows[those])
        address = np.frombuffer(told, np.uint64)
        is_told = (address > 0) & (address < _USER_ADDRESSES)
        return self._tid.rows[those][is_told], address[is_told]

    def _learn(self, ips: list[int]) -> None:
        """Decode code that samples found again and again, the most often found first."""
        strange = [ip for ip in ips if ip not in self._known]
        if not strange:
            return
        is_known = len(strange) <= (1 - _KNOWN_PART) * len(ips)
        least = _LEAST_TIMES_MORE if is_known else _LEAST_TIMES
        new = set(strange)
        times = Counter(ip for ip in self._ip.rows.tolist() if ip in new)
        with self._reading:
            for ip, count in times.most_common(_DECODED):
                if count >= least:
                    operand = self._operands.at(ip)
                    self._known[ip] = _UNKNOWN if operand is None else packed(operand)
        while len(self._known) > _KNOWN:
            del self._known[next(iter(self._known))]
