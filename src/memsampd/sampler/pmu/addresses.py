"""Loads and stores sampled with their data addresses: PEBS of Intel, IBS of AMD."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd import _core
from memsampd.closing import Closing
from memsampd.machines.pmu import HardwareEvent
from memsampd.sampler.perf.groups import EventGroup, SamplerOptions
from memsampd.sampler.perf.stream import SampleStream
from memsampd.sampler.pmu.periods import RandomPeriods

_RING_BYTES = 128 << 10
_PREFETCHES = 0x08  # PERF_MEM_OP_ of a sample's data source
# IbsOpData3 of AMD.
_IBS_LOAD, _IBS_STORE = np.uint64(1 << 0), np.uint64(1 << 1)
_IBS_ADDRESS_VALID, _IBS_PREFETCH = np.uint64(1 << 17), np.uint64(1 << 21)
_USER_END = np.uint64(1 << 47)


class SampledAccesses(msgspec.Struct, frozen=True):
    """Single accesses of running threads, chosen by the CPU.

    Attributes:
        tid: thread of each, shape (n,), int32.
        address: first byte that it referenced, shape (n,), uint64.
        time_seconds: CLOCK_MONOTONIC, shape (n,), float64, ascending.
        lost: samples that the kernel dropped since the read before.
        throttled: throttle events since then (each hides an unknown number).
        invalid: samples since then that told no valid address: other instructions mostly.
    """

    tid: NDArray[np.int32]
    address: NDArray[np.uint64]
    time_seconds: NDArray[np.float64]
    lost: int = 0
    throttled: int = 0
    invalid: int = 0

    def __len__(self) -> int:
        return len(self.address)


def sample_fields(events: Sequence[HardwareEvent]) -> int:
    """What samples of such events must have in them."""
    fields = _core.SAMPLE_ADDRESS | _core.SAMPLE_DATA_SOURCE
    return fields | (_core.SAMPLE_RAW if any(event.is_ibs for event in events) else 0)


def valid_accesses(samples: NDArray[np.void], is_ibs: bool) -> NDArray[np.bool_]:
    """Which samples are loads or stores with a data address in user memory, shape (n,).

    Args:
        samples: of SAMPLE_DTYPE.
        is_ibs: of any micro-ops, with the registers of IBS.
    """
    address = samples["address"]
    is_valid = (address != 0) & (address < _USER_END)
    if not is_ibs:
        return np.asarray(is_valid & (samples["data_source"] & np.uint64(_PREFETCHES) == 0))
    op = samples["ibs_op_data3"]
    is_access = (op & (_IBS_LOAD | _IBS_STORE)) != 0
    is_told = (op & _IBS_ADDRESS_VALID) != 0
    return np.asarray(is_valid & is_access & is_told & ((op & _IBS_PREFETCH) == 0))


class AccessSampler(Closing):
    """A stream of sampled accesses of a process.

    A sample in ``period`` of each event is taken, the period being random from 0.75 to 1.25 times
    that and drawn anew four times a second while somebody reads.

    Args:
        pid: the process.
        events: loads and stores, or what holds both, as they were found to work
            (:func:`memsampd.sampler.pmu.trial.try_sampled`).
        period: mean number of events between two samples.
        most_files: descriptors that may be opened; None: what the process may.
        seed: of the periods.

    Attributes:
        name: "pmu-accesses".

    Raises:
        TargetError: the process is gone or not ours.
        CapabilityError: perf events are refused; with the cause and what to do.
    """

    name = "pmu-accesses"

    def __init__(
        self,
        pid: int,
        events: Sequence[HardwareEvent],
        period: int,
        *,
        most_files: int | None = None,
        seed: int = 0,
    ) -> None:
        step = max(event.period_step for event in events)
        self._periods = RandomPeriods(period, step, random.Random(seed))
        self._is_ibs = any(event.is_ibs for event in events)
        options = SamplerOptions(
            pid=pid,
            period=self._periods.draw(),
            wakeup_bytes=_RING_BYTES // 4,
            ring_bytes=_RING_BYTES,
            follow_forks=False,
            most_files=most_files,
            groups=tuple(EventGroup(event) for event in events),
            fields=sample_fields(events),
        )
        self._stream = SampleStream(options)

    def read(self, timeout_seconds: float) -> SampledAccesses:
        """Wait for samples, at most so long, and return all that have come, in order of time."""
        found = self._stream.read(timeout_seconds)
        self._stream.take_events()
        self._periods.renew(self._stream.sampling_files())
        is_valid = valid_accesses(found.samples, self._is_ibs)
        samples = found.samples[is_valid]
        return SampledAccesses(
            tid=samples["tid"].astype(np.int32),
            address=samples["address"].astype(np.uint64),
            time_seconds=samples["time_ns"].astype(np.float64) * 1e-9,
            lost=found.lost,
            throttled=found.throttled,
            invalid=len(found.samples) - len(samples),
        )

    def close(self) -> None:
        """Release every descriptor and mapping; may be called twice."""
        self._stream.close()
