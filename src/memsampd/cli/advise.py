"""``memsampd advise``: how programs had better share the last-level cache."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from memsampd.cli.observing import announce
from memsampd.errors import CapabilityError, TargetError, UsageError
from memsampd.exporters.listen import DEFAULT_LISTEN

_OBSERVED_SECONDS = 20.0  # a process, by default
_APART_SECONDS = 2.0  # between two looks at live targets
# Until a daemon tells anew: it does so once a minute, whatever it has to do.
_PATIENCE_SECONDS = 75.0

if TYPE_CHECKING:
    from memsampd.cli.targets import CurvesSource, Document
    from memsampd.exporters.advice import Advice
    from memsampd.exporters.demand import Program
    from memsampd.machines.resctrl import DividedCache


class AdviseCommand:
    """Divides the last-level cache, and names programs to keep apart."""

    name = "advise"
    help = "who shares the last-level cache how, and who not"

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "recordings",
            nargs="*",
            type=Path,
            metavar="FILE",
            help="recordings that attach or run wrote, one of each program",
        )
        parser.add_argument(
            "--url",
            metavar="URL",
            help="ask a daemon or an 'attach --page' there for all its targets (default, without "
            f"recordings and --pid: http://{DEFAULT_LISTEN})",
        )
        parser.add_argument(
            "--pid",
            action="append",
            default=[],
            metavar="PID",
            help="observe this process first (may be given several times)",
        )
        parser.add_argument(
            "--duration",
            type=float,
            metavar="S",
            help=f"for how long to observe with --pid, in seconds (default: {_OBSERVED_SECONDS})",
        )
        parser.add_argument(
            "--goal",
            choices=("misses", "fairness"),
            default="misses",
            help="fewest misses in all, or least worst slowdown (default: %(default)s)",
        )
        parser.add_argument(
            "--cache", metavar="SIZE", help="size of the cache (default: this machine's last level)"
        )
        parser.add_argument(
            "--ways", type=int, metavar="N", help="its ways (default: this machine's)"
        )
        parser.add_argument("--json", action="store_true", help="print a JSON document")
        parser.add_argument(
            "--apply",
            action="store_true",
            help="have the kernel divide the cache so, in /sys/fs/resctrl (needs root)",
        )
        parser.add_argument(
            "-f",
            "--force",
            action="store_true",
            help="--apply what is not known to save misses, too",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Advise, and do it if that is asked for.

        Raises:
            UsageError: nothing to advise on, or an option that does not go with the others.
            MemsampdError: programs cannot be learnt of, or the cache not be divided.
        """
        from memsampd.exporters.advice import advise
        from memsampd.exporters.advice_text import to_document, to_text

        for option, is_given, other, is_there in (
            ("--duration", args.duration is not None, "--pid", args.pid),
            ("--force", args.force, "--apply", args.apply),
        ):
            if is_given and not is_there:
                raise UsageError(f"{option} goes with {other}", f"add {other}")
        cache = self._cache(args)
        programs = _programs(args, cache.size_bytes)
        advice = advise(programs, cache, args.goal)
        if args.json:
            sys.stdout.write(f"{json.dumps(to_document(advice), indent=1)}\n")
        else:
            sys.stdout.write(to_text(advice))
        if args.apply:
            self._apply(advice, args.force)
        return 0

    def _cache(self, args: argparse.Namespace) -> DividedCache:
        from memsampd.machines.resctrl import DividedCache, read_divided_cache
        from memsampd.models.sizes import parse_size

        if args.cache is None and args.ways is None:
            return read_divided_cache(self._root)
        if args.cache is None or args.ways is None:
            raise UsageError("only one of --cache and --ways", "give both, or none")
        if args.apply:
            raise UsageError("--apply with another machine's cache", "leave out --cache and --ways")
        size_bytes = parse_size(args.cache)
        if not 1 <= args.ways <= min(64, size_bytes // 1024):
            raise UsageError(f"{args.ways} ways", "give 1 to 64, of a KiB each at least")
        return DividedCache("L3", size_bytes, args.ways, 1, None, (0,), (), "command line")

    def _apply(self, advice: Advice, force: bool) -> None:
        from memsampd.exporters.advice import groups_of
        from memsampd.machines.resctrl import apply

        if advice.division is None:
            raise UsageError("nothing to divide", "name two programs at least")
        if advice.goal == "misses" and not advice.division.is_known_to_help and not force:
            raise UsageError(
                "this division is not known to save misses: nothing was divided",
                "observe the programs for longer, or add --force",
            )
        for program in advice.programs:
            self._check_alive(program)
        for folder in apply(groups_of(advice), self._root, announce):
            announce(f"made {folder}; rmdir undoes it")

    def _check_alive(self, program: Program) -> None:
        from memsampd.sampler.process.identity import read_stat

        try:
            now = read_stat(program.pid, self._root / "proc").start_ticks
        except OSError:
            now = None
        if now != program.start_ticks:
            raise TargetError(
                f"{program.label} has ended: nothing was divided", "observe what runs now"
            )


def _programs(args: argparse.Namespace, cache_bytes: int) -> list[Program]:
    programs = [_recorded(path, cache_bytes) for path in args.recordings]
    if args.url or not (args.recordings or args.pid):
        from memsampd.cli.targets import HttpTargets

        source = HttpTargets(args.url or f"http://{DEFAULT_LISTEN}")
        programs += _live(source, lambda before: _wait_for_news(source, before))
    if args.pid:
        from memsampd.cli.targets import OwnTargets

        seconds = _OBSERVED_SECONDS if args.duration is None else args.duration
        own = OwnTargets(args.pid, seconds)
        announce(f"observing for {seconds:g} s")
        try:
            programs += _live(own, lambda before: own.wait())
        finally:
            own.close()
    return programs


def _recorded(path: Path, cache_bytes: int) -> Program:
    from memsampd.exporters.demand import program_of_recording
    from memsampd.exporters.recording import read_recording

    return program_of_recording(read_recording(path), cache_bytes)


def _wait_for_news(source: CurvesSource, before: Mapping[str, Document]) -> None:
    """Wait until a daemon has told anew of all that run; mostly it does so every few seconds."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < end:
        time.sleep(_APART_SECONDS)
        now = {target["target"]: target for target in source.targets()}
        if all(
            _cpus(target, now[name]) is not None
            for name, target in before.items()
            if name in now and _is_observed(now[name])
        ):
            return


def _live(source: CurvesSource, pause: Callable[[Mapping[str, Document]], None]) -> list[Program]:
    """Return the programs of a source, with the CPU time that they use meanwhile.

    Args:
        source: knows of them.
        pause: waits between two looks; it is given what the first one saw.

    Raises:
        CapabilityError: none runs.
    """
    from memsampd.exporters.demand import program_of_documents

    before = {target["target"]: target for target in source.targets()}
    pause(before)
    programs = []
    try:
        for target in source.targets():
            name = target["target"]
            if _is_observed(target) and name in before:
                cpus = _cpus(before[name], target)
                programs.append(
                    program_of_documents(target, source.phases(name), source.curves(name), cpus)
                )
    except (KeyError, TypeError, ValueError) as error:
        raise CapabilityError(
            f"a target's document lacks what it is to have: {error}",
            "use the memsampd that serves it",
        ) from error
    if not programs:
        raise CapabilityError("no target runs", "observe some processes first")
    return programs


def _is_observed(target: Document) -> bool:
    return bool(target["alive"] and target.get("attached", True))


def _cpus(before: Document, now: Document) -> float | None:
    """Return the CPU seconds in user mode that a target used in a second between two looks.

    None: it was not told of anew, though it was not idle. Who is, is told of more rarely.
    """
    seconds = now["time_monotonic_seconds"] - before["time_monotonic_seconds"]
    used = now["user_cpu_seconds"] - before["user_cpu_seconds"]
    if seconds > 0:
        return float(used / seconds)
    return 0.0 if now["idle"] else None


COMMAND = AdviseCommand()
