"""Live runs: programs alone and under ``memsampd run``, in rounds; each is kept once it is done."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from evaluation.results import Results
from evaluation.scraping import Scrape, Scraper, free_address, read_scrapes, write_scrapes
from memsampd.exporters.recording import Recording, read_recording
from reference.programs import find
from reference.running import Timing, run_alone, run_recorded

ALONE = "alone"


@dataclass(frozen=True, slots=True)
class Setting:
    """A way to run memsampd.

    Attributes:
        name: as cases name it.
        what: for people.
        options: of ``memsampd run``.
        scraped: whether metrics are read while it runs.
    """

    name: str
    what: str
    options: tuple[str, ...] = ()
    scraped: bool = False


DEFAULT = Setting("default", "phase-guided, as installed")
PERIODIC = Setting(
    "periodic", "periodic, every tenth window", ("--schedule", "periodic", "--budget", "1")
)
DETECTION = Setting("detection", "phases without bursts", ("--schedule", "none"))
SCRAPED = Setting("scraped", "as installed, metrics read meanwhile", scraped=True)
MAIN = (DEFAULT, PERIODIC, DETECTION)
SWEEP = (
    *(
        Setting(
            f"{schedule}, {share} %",
            f"{schedule}, a budget of {share} %",
            ("--schedule", schedule, "--budget", f"{float(share) / 100:g}"),
        )
        for schedule in ("phase-guided", "periodic")
        for share in ("0.25", "1", "4")
    ),
    Setting("bursts of 200 k", "phase-guided, no long bursts", ("--burst", "200000")),
    Setting("bursts of 4 M", "phase-guided, long bursts of 4 M accesses", ("--burst", "4000000")),
)
GROUPS: dict[str, tuple[Setting | None, ...]] = {
    "main": (None, *MAIN),
    "sweep": (None, *SWEEP),
    "live": (SCRAPED,),
}
"""What a round runs; None is the program alone."""


@dataclass(frozen=True, slots=True)
class LiveRun:
    """One run.

    Attributes:
        program: its name.
        setting: name of the setting, or "alone".
        repeat: number of its round.
        timing: of the program itself.
        recording: what memsampd recorded; None when alone.
    """

    program: str
    setting: str
    repeat: int
    timing: Timing
    recording: Path | None

    def read(self) -> Recording:
        """Return the recording.

        Raises:
            ValueError: it ran alone.
        """
        if self.recording is None:
            raise ValueError(f"{self.program} ran alone")
        return _recording(self.recording)

    def scrapes(self) -> list[Scrape]:
        """Return what was read of its metrics.

        Raises:
            ValueError: it ran alone.
            FileNotFoundError: they were not read.
        """
        if self.recording is None:
            raise ValueError(f"{self.program} ran alone")
        return read_scrapes(_scrapes_beside(self.recording))


class LiveRuns:
    """Makes runs when they are first asked for.

    A round of a program is one run with each setting of a group, mostly one alone too, in an order
    drawn anew for each round: what slows the machine for a while hits all alike.

    Args:
        folder: for the table of runs and the recordings.
        build: where programs are built and run.
    """

    def __init__(self, folder: Path, build: Path) -> None:
        self._folder = folder
        self._build = build
        self._runs = Results(
            folder / "runs.csv",
            ("group", "program", "repeat"),
            ("setting", "wall_seconds", "total_cpu_seconds", "recording"),
        )
        self._warm: set[str] = set()

    def round(self, group: str, program: str, repeat: int) -> list[LiveRun]:
        """Return a round, and run it if that was not done yet."""
        case = (group, program, str(repeat))
        if not self._runs.has(case):
            self._runs.add(case, self._run_round(group, program, repeat))
        return self._kept(group, program, repeat)

    def as_installed(self, program: str, repeat: int) -> LiveRun:
        """Return a run of the main group with memsampd's own defaults."""
        runs = self.round("main", program, repeat)
        (run,) = (run for run in runs if run.setting == DEFAULT.name)
        return run

    def scraped(self, program: str, repeat: int) -> LiveRun:
        """Return a run with memsampd's own defaults of which metrics were read."""
        (run,) = self.round("live", program, repeat)
        return run

    def kept(self, group: str, program: str) -> list[LiveRun]:
        """Return all runs of a program that were done in a group."""
        return self._kept(group, program, None)

    def _kept(self, group: str, program: str, repeat: int | None) -> list[LiveRun]:
        return [
            LiveRun(
                program,
                row["setting"],
                int(row["repeat"]),
                Timing(float(row["wall_seconds"]), float(row["total_cpu_seconds"])),
                self._folder / row["recording"] if row["recording"] else None,
            )
            for row in self._runs.rows
            if (row["group"], row["program"]) == (group, program)
            and (repeat is None or row["repeat"] == str(repeat))
        ]

    def _run_round(
        self, group: str, program: str, repeat: int
    ) -> list[dict[str, str | float | None]]:
        (found,) = find([program])
        command = found.command(self._build / "programs")
        if program not in self._warm:  # files into the page cache
            run_alone(command, self._build)
            self._warm.add(program)
        settings = list(GROUPS[group])
        random.Random(f"{group} {program} {repeat}").shuffle(settings)
        return [self._run(command, group, program, repeat, setting) for setting in settings]

    def _run(
        self,
        command: Sequence[str],
        group: str,
        program: str,
        repeat: int,
        setting: Setting | None,
    ) -> dict[str, str | float | None]:
        name = ""
        if setting is None:
            timing = run_alone(command, self._build)
        else:
            name = f"recordings/{program}-{_plain(setting.name)}-{group}-{repeat}.mem"
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            options = ("--force", "--seed", str(repeat), *setting.options)
            timing = (run_scraped if setting.scraped else run_recorded)(
                command, path, self._build, options
            )
        return {
            "setting": setting.name if setting else ALONE,
            "wall_seconds": timing.wall_seconds,
            "total_cpu_seconds": timing.total_cpu_seconds,
            "recording": name,
        }


def run_scraped(
    command: Sequence[str], recording: Path, cwd: Path, options: Sequence[str]
) -> Timing:
    """Run a program under ``memsampd run`` and keep scrapes of its metrics beside the recording.

    Raises:
        RunError: it or memsampd failed.
    """
    address = free_address()
    with Scraper(address).running() as scraper:
        timing = run_recorded(command, recording, cwd, options, address, scraper.scrape)
    write_scrapes(_scrapes_beside(recording), scraper.scrapes(timing.start_seconds))
    return timing


def _scrapes_beside(recording: Path) -> Path:
    return recording.with_suffix(".scrapes.json")


def slowdowns(runs: Sequence[LiveRun], setting: str) -> list[float]:
    """Return the slowdown of the wall time, in percent, of each round that ran a setting."""
    alone = {run.repeat: run.timing.wall_seconds for run in runs if run.setting == ALONE}
    return [
        100 * (run.timing.wall_seconds / alone[run.repeat] - 1)
        for run in runs
        if run.setting == setting and run.repeat in alone
    ]


def _plain(name: str) -> str:
    """Return a setting's name as a part of a file's."""
    return "".join(letter if letter.isalnum() or letter == "." else "-" for letter in name)


@lru_cache(maxsize=32)
def _recording(path: Path) -> Recording:
    return read_recording(path)
