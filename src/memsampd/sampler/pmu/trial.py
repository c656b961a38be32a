"""Whether events of a PMU really work here: each is tried on a loop whose counts are known.

Some machines open counters that never count, or count something else; an open descriptor proves
nothing. The loop runs on the calling thread, some milliseconds an event.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from memsampd import _core
from memsampd.errors import CapabilityError, MemsampdError
from memsampd.machines.pmu import HardwareEvent
from memsampd.sampler.perf.refusal import explain_refusal
from memsampd.sampler.perf.rings import SAMPLE_DTYPE
from memsampd.sampler.pmu.addresses import sample_fields, valid_accesses

Role = Literal["loads", "stores", "branches", "instructions", "cycles"]

ROUNDS = 2_000_000  # a millisecond or so
_SAMPLES = 200
_RING_BYTES = 64 << 10
# Counts a round; cycles are not known beforehand.
_EACH: dict[Role, float] = {"loads": 1, "stores": 1, "branches": 1, "instructions": 4}
_LEAST, _MOST, _MOST_SPECULATIVE = 0.9, 1.1, 2.0
_INSIDE_LEAST = 0.9  # of samples: in the loop, or of its addresses


class Trial(msgspec.Struct, frozen=True):
    """What came of trying an event.

    Attributes:
        event: with the precise level that it is used with.
        detail: what was found, for people.
        refusal: why it is not used; None where it works.
    """

    event: HardwareEvent
    detail: str
    refusal: MemsampdError | None = None

    @property
    def works(self) -> bool:
        """Whether it may be used."""
        return self.refusal is None


def settle(
    event: HardwareEvent, open_counter: Callable[..., int] = _core.perf_open_counter
) -> tuple[HardwareEvent, str]:
    """Find the highest precise level that opens.

    Args:
        event: with the highest one to try.
        open_counter: opens an event on this thread.

    Returns:
        The event with that level, and how it came down to it; empty where it did not.

    Raises:
        MemsampdError: it does not open at any level.
    """
    why = ""
    for level in range(event.precise_level, -1, -1):
        try:
            os.close(_open(replace(event, precise_level=level), open_counter))
        except OSError as error:
            if level == 0:
                raise explain_refusal(error, event.name) from error
            why = why or f"{explain_refusal(error, '').cause}".lstrip(": ")
            continue
        note = f"precise level {event.precise_level} is refused ({why}): {level} is used"
        return replace(event, precise_level=level), note if why else ""
    raise AssertionError("level 0 opens or is refused")


def _open(event: HardwareEvent, open_counter: Callable[..., int]) -> int:
    period = 1_000_000 * event.period_step
    return open_counter(
        threading.get_native_id(),
        event.type,
        event.config,
        event.config1,
        event.config2,
        bp_type=event.bp_type,
        precise_ip=event.precise_level,
        period=period if event.precise_level or event.is_ibs else 0,
        exclude_kernel=event.excludes_kernel,
    )


def try_counter(
    event: HardwareEvent, role: Role, is_speculative: bool = False, rounds: int = ROUNDS
) -> Trial:
    """Count the known loop.

    Args:
        event: to count.
        role: what it should count.
        is_speculative: it may count more than is executed in the end.
        rounds: of the loop.
    """
    event = replace(event, precise_level=0)
    try:
        fd = _open(event, _core.perf_open_counter)
    except OSError as error:
        return _refused(event, explain_refusal(error, event.name))
    try:
        _core.run_known_loop(rounds)
        count, enabled_ns, running_ns = struct.unpack("QQQ", os.read(fd, 24))
    finally:
        os.close(fd)
    if not count:
        return _refused(event, _counts_nothing(event))
    counted = count * enabled_ns / max(running_ns, 1)
    each = counted / rounds
    detail = f"{each:.3g} in a loop of known counts"
    known = _EACH.get(role)
    if known is None:
        return Trial(event, detail)
    most = _MOST_SPECULATIVE if is_speculative else _MOST
    if _LEAST <= each / known <= most:
        return Trial(event, f"{detail} ({known:g} expected)")
    error_text = f"{event.name}: it counts {each:.3g} a round where {known:g} are executed"
    return _refused(event, CapabilityError(error_text, "it counts something else: not used"))


def try_sampled(event: HardwareEvent, role: Role | None, rounds: int = ROUNDS) -> Trial:
    """Sample the known loop, at the highest precise level that there is.

    Args:
        event: to sample.
        role: "branches" if it should tell instructions; "loads", "stores" or None (both) if
            it should tell data addresses.
        rounds: of the loop.
    """
    try:
        event, note = settle(event)
        samples, places = _sample_loop(event, rounds)
    except OSError as error:
        return _refused(event, explain_refusal(error, event.name))
    except MemsampdError as error:
        return _refused(event, error)
    if not len(samples):
        return _refused(event, _counts_nothing(event))
    if role == "branches":
        trial = _judge_ips(event, samples, places)
    else:
        trial = _judge_addresses(event, role, samples, places)
    return replace(trial, detail="; ".join(part for part in (trial.detail, note) if part))


def _sample_loop(event: HardwareEvent, rounds: int) -> tuple[NDArray[np.void], tuple[int, ...]]:
    period = max(rounds // _SAMPLES // event.period_step, 1) * event.period_step
    fields = sample_fields([event])
    fd = _core.perf_open_sampler(
        threading.get_native_id(),
        -1,
        period,
        _RING_BYTES // 2,
        _core.INHERIT_NOTHING,
        type=event.type,
        config=event.config,
        config1=event.config1,
        config2=event.config2,
        bp_type=event.bp_type,
        precise_ip=event.precise_level,
        sample_type=fields,
        exclude_kernel=event.excludes_kernel,
    )
    try:
        ring = _core.PerfRing(fd, _RING_BYTES, fields)
        places = _core.run_known_loop(rounds)
        found = np.frombuffer(ring.drain()[0], SAMPLE_DTYPE)
        ring.close()
    finally:
        os.close(fd)
    return found, places


def _judge_ips(event: HardwareEvent, samples: NDArray[np.void], places: tuple[int, ...]) -> Trial:
    start, _, branch, end, *_ = places
    ip = samples["ip"]
    inside = float(np.mean((ip >= start) & (ip <= end)))
    if inside < _INSIDE_LEAST:
        return _refused(event, _wrong(event, f"only {inside:.0%} of its samples are in the loop"))
    exact = float(np.mean(ip == branch))
    detail = f"{len(samples)} samples of a loop at precise level {event.precise_level}"
    skid = "" if event.is_ibs else f"; {exact:.0%} tell the branch itself, the others skid"
    return Trial(event, detail + skid)


def _judge_addresses(
    event: HardwareEvent, role: Role | None, samples: NDArray[np.void], places: tuple[int, ...]
) -> Trial:
    load, store, *_, loaded, stored = places
    is_valid = valid_accesses(samples, event.is_ibs)
    kinds = {"loads": ([loaded], [load]), "stores": ([stored], [store])}
    words, instructions = kinds.get(role or "", ([loaded, stored], [load, store]))
    address = samples["address"][is_valid]
    right = float(np.mean(np.isin(address, words))) if len(address) else 0.0
    if right < _INSIDE_LEAST:
        said = f"only {right:.0%} of its data addresses are those of the loop"
        return _refused(
            event, _wrong(event, said if len(address) else "its samples have no data addresses")
        )
    exact = float(np.mean(np.isin(samples["ip"][is_valid], instructions)))
    return Trial(
        event,
        f"{len(address)} data addresses of a loop at precise level {event.precise_level}, of "
        f"{len(samples)} samples; {exact:.0%} tell the instruction itself, the others skid",
    )


def _wrong(event: HardwareEvent, said: str) -> CapabilityError:
    cause = f"{event.name}: in a trial on a known loop {said}"
    return CapabilityError(cause, "a hypervisor may emulate it badly: not used")


def _counts_nothing(event: HardwareEvent) -> CapabilityError:
    return CapabilityError(
        f"{event.name}: it opens but counts nothing",
        "the hypervisor or the kernel drops it: use another machine, or report a bug there",
    )


def _refused(event: HardwareEvent, refusal: MemsampdError) -> Trial:
    return Trial(event, refusal.cause, refusal)
