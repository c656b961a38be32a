"""Which events are opened for a target, and which rings they write to.

Two layouts. :class:`PerCpuRings` opens an event for each thread on each CPU, inherited by new
threads, and one ring a CPU. The kernel refuses to map an inherited event that is not bound to a
CPU, so this is the only layout in which it follows new threads by itself.
:class:`PerThreadRings` needs one descriptor and one ring a thread, and must find new threads.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

from memsampd.sampler.perf.cpu_rings import PerCpuRings
from memsampd.sampler.perf.groups import SamplerOptions, allow_open_files
from memsampd.sampler.perf.rings import NoRoomForRingError, NotInheritedError, Rings
from memsampd.sampler.perf.thread_rings import PerThreadRings
from memsampd.sampler.process.status import list_threads


def open_rings(options: SamplerOptions, cpus: Sequence[int]) -> Rings:
    """Open the target's events in the best layout that the limit of open files allows.

    Rings are made smaller, all alike, where the limit of locked memory asks for it.

    Raises:
        TargetError: the target is gone or not ours.
        CapabilityError: the kernel refuses; the remedy says why.
    """
    while True:
        try:
            return _open_layout(options, cpus)
        except NoRoomForRingError:
            if options.ring_bytes <= mmap.PAGESIZE:
                raise
        options = options.halved()


def _open_layout(options: SamplerOptions, cpus: Sequence[int]) -> Rings:
    threads = len(list_threads(options.pid))
    few = threads * options.files_of_a_thread
    wanted = (few + 1) * len(cpus)  # each ring belongs to one more
    why = (
        f"{threads} threads on {len(cpus)} CPUs need more descriptors than the limit of open "
        "files (ulimit -Hn) allows"
    )
    is_in_share = options.most_files is None or wanted <= options.most_files
    if is_in_share and allow_open_files(wanted):
        try:
            return PerCpuRings(options, cpus)
        except NotInheritedError as error:
            why = error.cause
    options.check_files(few)
    options.check_kinds()
    allow_open_files(few)
    return PerThreadRings(
        options, f"{why}: new threads are found by looking for them, a little late"
    )
