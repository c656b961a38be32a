"""What the kernel is asked for, as strace reads it off the system call.

The events are of machines that this is not: the kernel refuses them, after it was asked. perf tells
what it asks for, too (``perf record -vv``): of raw events, breakpoints and the task clock, which
need no unit in sysfs.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from needed import tool

OPENING = """
import os
from memsampd import _core
from memsampd.machines.machine import Cpu
from memsampd.machines.pmu import Pmu, plan_events
from memsampd.sampler.perf.groups import EventGroup, SamplerOptions
from memsampd.sampler.pmu.addresses import sample_fields
def asked(vendor, family, model, *pmus):
    plan = plan_events(Cpu("x86_64", vendor, family, model, 1, "", ""), pmus, "6.18")
    for events, fields in (
        (plan.branches, _core.SAMPLE_COUNTS | _core.SAMPLE_REGISTERS),
        (plan.addresses, sample_fields(plan.addresses)),
    ):
        for event in events:
            options = SamplerOptions(
                os.getpid(), 160_000, 4096, 8192, False,
                groups=(EventGroup(event),), fields=fields,
            )
            try:
                options.open_groups(os.getpid(), 0, _core.INHERIT_THREADS)
            except OSError:
                pass
cpu = Pmu("cpu", 77, frozenset())
asked("GenuineIntel", 6, 0x8F, cpu)
asked("GenuineIntel", 6, 0x2A, Pmu("cpu", 77, frozenset(), most_precise=2))
asked("AuthenticAMD", 25, 1, cpu, Pmu("ibs_op", 78, frozenset({"swfilt"})))
asked("AuthenticAMD", 25, 1, cpu, Pmu("ibs_op", 78, frozenset()))
"""
# Unit, event, config1, config2, precise level, whether the kernel is left out, whether an address.
EXPECTED = [
    (77, 0x11C4, 0, 0, 3, 1, False),
    (77, 0x81D0, 0, 0, 3, 1, True),
    (77, 0x82D0, 0, 0, 3, 1, True),
    (77, 0x01C4, 0, 0, 2, 1, False),
    (77, 0x01CD, 3, 0, 2, 1, True),
    (77, 0x02CD, 0, 0, 2, 1, True),
    (78, 1 << 19, 0, 1, 0, 1, False),
    (78, 1 << 19, 0, 1, 0, 1, True),
    (78, 1 << 19, 0, 0, 0, 0, False),
    (78, 1 << 19, 0, 0, 0, 0, True),
]


def number(call: str, name: str) -> int:
    found = re.search(rf"\b{name}=(0x[0-9a-f]+|\d+)", call)
    assert found, f"{name} in {call}"
    return int(found[1], 0)


def test_attributes_of_events() -> None:
    command = [tool("strace", "strace"), "-v", "-e", "trace=perf_event_open"]
    command += [sys.executable, "-c", OPENING]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    calls = [line for line in done.stderr.splitlines() if line.startswith("perf_event_open(")]
    read = [
        (
            number(call, "type"),
            number(call, "config"),
            number(call, "config1"),
            number(call, "config2"),
            number(call, "precise_ip"),
            number(call, "exclude_kernel"),
            "PERF_SAMPLE_ADDR" in call,
        )
        for call in calls
    ]
    assert read == EXPECTED
    for call in calls:
        assert "PERF_SAMPLE_IP|PERF_SAMPLE_TID|PERF_SAMPLE_TIME" in call
        assert number(call, "sample_period") == 160_000
        assert (number(call, "inherit"), number(call, "inherit_thread")) == (1, 1)
        assert number(call, "exclude_hv") == number(call, "exclude_kernel")
        assert "clockid=CLOCK_MONOTONIC" in call
        # What is read along tells its times; micro-ops bring the registers of IBS.
        assert ("PERF_FORMAT_TOTAL_TIME_ENABLED" in call) is ("PERF_SAMPLE_READ" in call)
        is_ibs_address = number(call, "type") == 78 and "PERF_SAMPLE_ADDR" in call
        assert ("PERF_SAMPLE_RAW" in call) is is_ibs_address


# ---- The same events as perf encodes them ----

SAME_OPENING = """
import os
from memsampd import _core
from memsampd.machines.machine import Cpu
from memsampd.machines.pmu import Pmu, plan_events
from memsampd.sampler.perf.groups import EventGroup, SamplerOptions
def open_event(event):
    options = SamplerOptions(
        os.getpid(), 160_000, 4096, 8192, False, groups=(EventGroup(event),)
    )
    try:
        options.open_groups(os.getpid(), 0, _core.INHERIT_THREADS)
    except OSError:
        pass
def of_model(model, most_precise):
    cpu = Cpu("x86_64", "GenuineIntel", 6, model, 1, "", "")
    pmu = Pmu("cpu", 4, frozenset(), most_precise=most_precise)  # PERF_TYPE_RAW is the first unit's
    return plan_events(cpu, (pmu,), "6.18")
server, sandy_bridge = of_model(0x8F, 3), of_model(0x2A, 2)
chosen = EVENT
if isinstance(chosen, int):
    _core.Breakpoints(os.getpid(), [(chosen, 0x4000)], 1)
else:
    open_event(chosen)
"""
SAMPLED = "type config precise_ip exclude_user exclude_kernel exclude_hv exclude_idle exclude_host"
"""What makes the event; fields of the sample and how long it runs are each program's own matter.

So is ``exclude_guest``: perf leaves guests out, where a CPU runs virtual machines; we drop their
samples.
"""


def asked_by_us(event: str) -> str:
    program = SAME_OPENING.replace("EVENT", event)
    command = [tool("strace", "strace"), "-v", "-X", "raw", "-e", "trace=perf_event_open"]
    done = subprocess.run(
        [*command, sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    # Breakpoints are in a group with a clock, the leader.
    return [line for line in done.stderr.splitlines() if line.startswith("perf_event_open(")][-1]


def asked_by_perf(event: str, folder: Path) -> dict[str, int]:
    """Attributes that are not 0; names of a union are each there."""
    options = ["-vv", "-c", "160000", "-o", str(folder / "perf.data"), "-e", event]
    command = [tool("perf", "linux-perf"), "record", *options]
    done = subprocess.run([*command, "--", "true"], capture_output=True, text=True, check=False)
    found = re.search(r"^perf_event_attr:\n(?P<attributes>.*?)^-+$", done.stderr, re.M | re.S)
    assert found, done.stderr
    attributes = {}
    for line in found["attributes"].splitlines():
        names, value = re.match(r"\s+(\{.*?\}|\S+)\s+(\S+)", line).groups()  # type: ignore[union-attr]
        if re.fullmatch(r"0x[0-9a-f]+|\d+", value):
            attributes.update(dict.fromkeys(re.findall(r"\w+", names), int(value, 0)))
    return attributes


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("server.branches[0]", "r11c4:uppp"),
        ("server.addresses[0]", "r81d0:uppp"),
        ("server.addresses[1]", "r82d0:uppp"),
        ("sandy_bridge.branches[0]", "r1c4:upp"),
        ("sandy_bridge.addresses[1]", "r2cd:upp"),
        ("EventGroup().sampled", "task-clock:u"),
        ("_core.BREAKPOINT_ACCESS", "mem:0x4000/8:rw:u"),
        ("_core.BREAKPOINT_EXECUTE", "mem:0x4000:x:u"),
    ],
)
def test_perf_encodes_the_same(ours: str, theirs: str, tmp_path: Path) -> None:
    call, told = asked_by_us(ours), asked_by_perf(theirs, tmp_path)
    names = SAMPLED.split()
    is_breakpoint = ours.startswith("_core.")
    names += ["bp_type", "bp_addr", "bp_len"] if is_breakpoint else ["sample_period"]
    assert {name: number(call, name) for name in names} == {
        name: told.get(name, 0) for name in names
    }
