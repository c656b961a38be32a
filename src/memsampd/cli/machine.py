"""``memsampd machine``: what is known of this machine, and its peak memory bandwidth, measured."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from memsampd.errors import CapabilityError, UsageError

if TYPE_CHECKING:
    from memsampd.machines.bandwidth import Bandwidth
    from memsampd.machines.machine import Machine
    from memsampd.machines.machine_file import MachineFile

_SECONDS = 7.0
_SECONDS_RANGE = (0.5, 600.0)


class MachineCommand:
    """Prints caches, CPUs, PMU and the measured peak; measures it if asked to."""

    name = "machine"
    help = "tell what is known of this machine, and measure its memory"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("--json", action="store_true", help="print JSON instead of text")
        parser.add_argument(
            "--measure",
            action="store_true",
            help="measure peak memory bandwidth and keep it in the machine file",
        )
        parser.add_argument(
            "--seconds",
            type=float,
            metavar="S",
            help=f"how long to measure (default: {_SECONDS:g})",
        )
        parser.add_argument(
            "--even-if-busy",
            action="store_true",
            help="measure although others use the CPUs, or not all may be used: the peak may come "
            "out too low",
        )
        parser.add_argument(
            "-o",
            "--output",
            type=Path,
            metavar="FILE",
            help="machine file to write (default: $XDG_STATE_HOME/memsampd/machine.json; "
            "without XDG_STATE_HOME /var/lib/memsampd/machine.json for root, else below "
            "~/.local/state)",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Measure if asked to, and print.

        Raises:
            UsageError: an option that does not go with the others, or a time out of range.
            CapabilityError: the machine is busy, or the file cannot be read or written.
        """
        from memsampd.machines.machine import read_machine
        from memsampd.machines.machine_file import find_file, own_path, read_file, write_file

        if not args.measure and (args.output or args.even_if_busy or args.seconds is not None):
            raise UsageError(
                "--output, --seconds and --even-if-busy go with --measure", "add --measure"
            )
        seconds = _SECONDS if args.seconds is None else args.seconds
        if not _SECONDS_RANGE[0] <= seconds <= _SECONDS_RANGE[1]:
            raise UsageError(f"--seconds {seconds:g}", "give 0.5 to 600")
        machine = read_machine()
        if args.measure:
            measured = _measure(machine, seconds, args.even_if_busy)
            path: Path | None = args.output or own_path()
            write_file(args.output or own_path(), measured)
            content: MachineFile | None = measured
        else:
            path = find_file()
            content = read_file(path) if path is not None else None
        as_text = _as_json if args.json else _as_text
        sys.stdout.write(as_text(machine, path, content))
        return 0


def _measure(machine: Machine, seconds: float, even_if_busy: bool) -> MachineFile:
    from memsampd.machines.bandwidth import (
        BUSY_SHARE,
        allowed_cpus,
        check_cpus,
        check_idle,
        measure_bandwidth,
    )
    from memsampd.machines.machine_file import MachineFile
    from memsampd.sampler.process.cgroup import memory_room_bytes, read_limits

    online = len(machine.cpus)
    allowed = allowed_cpus(read_limits(os.getpid()).cpus)
    try:
        check_cpus(allowed, online)
        check_idle()
    except CapabilityError as error:
        if not even_if_busy:
            raise
        sys.stderr.write(f"memsampd: warning: {error.cause}\n")

    def tell(bandwidth: Bandwidth) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"{_describe(bandwidth)}\n")

    room = memory_room_bytes(os.getpid())
    measured = measure_bandwidth(_last_level_bytes(machine), seconds, tell, group_room_bytes=room)
    if measured.others_cpu_share > BUSY_SHARE:
        sys.stderr.write(
            f"memsampd: warning: others used {measured.others_cpu_share:.0%} of the CPU time "
            "meanwhile; the peak may be too low\n"
        )
    return MachineFile(
        measured_unix_seconds=time.time(),
        cpu=machine.cpu.name,
        cpus=online,
        bandwidths=measured.bandwidths,
        others_cpu_share=measured.others_cpu_share,
        area_bytes=measured.area_bytes,
        allowed_cpus=allowed if allowed < online else None,
    )


def _last_level_bytes(machine: Machine) -> int:
    """Size of all caches of the last level together."""
    last = max((cache.level for cache in machine.caches), default=0)
    return sum(cache.size_bytes for cache in machine.caches if cache.level == last)


def _describe(bandwidth: Bandwidth) -> str:
    threads = "1 thread" if bandwidth.threads == 1 else f"{bandwidth.threads} threads"
    return f"{bandwidth.operation:<5} by {threads}: {bandwidth.bytes_per_second / 1e9:.2f} GB/s"


def _as_json(machine: Machine, path: Path | None, content: MachineFile | None) -> str:
    import msgspec

    from memsampd.machines.cache_seconds import measure_cache_seconds
    from memsampd.machines.pmu import read_pmus

    measured = None
    if content is not None:
        measured = {
            **msgspec.to_builtins(content),
            "peak": msgspec.to_builtins(content.peak),
            "is_of_this_machine": content.is_of(machine),
        }
    report = {
        "machine": msgspec.to_builtins(machine),
        "cache_seconds": measure_cache_seconds(machine.cache_sizes_bytes()),
        "pmus": [pmu.name for pmu in read_pmus()],
        "file": str(path) if path is not None else None,
        "measured": measured,
    }
    return json.dumps(report, indent=2) + "\n"


def _as_text(machine: Machine, path: Path | None, content: MachineFile | None) -> str:
    from memsampd.machines.cache_seconds import measure_cache_seconds
    from memsampd.machines.pmu import read_pmus
    from memsampd.models.sizes import format_size

    rows = [("processor", machine.cpu.name or "unknown"), ("CPUs", f"{len(machine.cpus)} online")]
    for (name, size_bytes, ways, sharing, source), count in Counter(
        (each.name, each.size_bytes, each.ways, len(each.shared_cpus), each.source)
        for each in machine.caches
    ).items():
        times = f"{count} x " if count > 1 else ""
        shared = f", each shared by {sharing} CPUs" if sharing > 1 else ""
        said = f"{times}{format_size(size_bytes)}" + (f", {ways} ways" if ways else "") + shared
        rows.append((name, f"{said} ({source})"))
    for name, seconds in measure_cache_seconds(machine.cache_sizes_bytes()).items():
        rows.append((f"{name} access", f"{1e9 * seconds:.0f} ns, measured now"))
    rows.append(("PMU", ", ".join(pmu.name for pmu in read_pmus()) or "none (none is needed)"))
    if content is None:
        rows.append(("memory peak", "not measured: memsampd machine --measure"))
    else:
        rows += [("memory peak", _describe(each)) for each in content.bandwidths]
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(content.measured_unix_seconds))
        here = "" if content.is_of(machine) else ", on ANOTHER machine: not used"
        busy = f"others used {content.others_cpu_share:.0%} of the CPU time"
        if content.allowed_cpus is not None:
            busy += f", and only {content.allowed_cpus:g} of the CPUs could be used"
        rows.append(("measured", f"{when}, {busy}{here} ({path})"))
    width = max(len(name) for name, _ in rows)
    return "".join(f"{name:<{width}}  {text}\n" for name, text in rows)


COMMAND = MachineCommand()
