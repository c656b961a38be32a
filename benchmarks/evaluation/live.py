"""Programs under ``memsampd run``, metrics read meanwhile; each run is kept once it is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evaluation.scraping import (
    SCRAPE_SECONDS,
    Scrape,
    Scraper,
    read_scrapes,
    write_scrapes,
)
from memsampd.exporters.recording import Recording, read_recording
from reference.programs import find
from reference.running import run_alone, run_recorded
from targets.agent import free_port


@dataclass(frozen=True, slots=True)
class LiveRun:
    """One run.

    Attributes:
        recording: what memsampd recorded.
        scrapes: where the scrapes of its metrics are.
    """

    recording: Path
    scrapes: Path

    def read(self) -> tuple[Recording, list[Scrape]]:
        """Return the recording and what was read of the metrics."""
        return read_recording(self.recording), read_scrapes(self.scrapes)


class LiveRuns:
    """Makes runs when they are first asked for.

    Args:
        folder: for the recordings.
        build: where programs are built and run.
        options: of ``memsampd run`` in all of them.
    """

    def __init__(self, folder: Path, build: Path, options: Sequence[str] = ()) -> None:
        self._folder = folder / "recordings"
        self._build = build
        self._options = tuple(options)
        self._warm: set[str] = set()

    def run(self, program: str, repeat: int) -> LiveRun:
        """Return a run, with memsampd's own defaults for what is not an option of all runs.

        Raises:
            RunError: the program or memsampd failed.
        """
        stem = self._folder / f"{program}-scraped-live-{repeat}"
        run = LiveRun(stem.with_suffix(".mem"), stem.with_suffix(".scrapes.json"))
        if not run.scrapes.exists():  # they are written last
            self._folder.mkdir(parents=True, exist_ok=True)
            self._make(run, program, repeat)
        return run

    def recorded(self, program: str, repeat: int, kind: str, options: Sequence[str]) -> Recording:
        """Return the recording of a run with other options, whose metrics nobody reads.

        Args:
            program: its name.
            repeat: which of the runs, and the session's seed.
            kind: what names these options, and the folder beside that of the scraped runs.
            options: of ``memsampd run``.

        Raises:
            RunError: the program or memsampd failed.
        """
        path = self._folder.parent / kind / f"{program}-{repeat}.mem"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_suffix(".new")
            told = (*self._told(repeat), *options)
            run_recorded(self._warmed(program), unfinished, self._build, told)
            unfinished.rename(path)
        return read_recording(path)

    def _make(self, run: LiveRun, program: str, repeat: int) -> None:
        command = self._warmed(program)
        address = f"127.0.0.1:{free_port()}"
        options = (*self._told(repeat), "--linger", str(2 * SCRAPE_SECONDS))
        with Scraper(address).running() as scraper:
            start_seconds = run_recorded(command, run.recording, self._build, options, address)
        write_scrapes(run.scrapes, scraper.scrapes(start_seconds))

    def _told(self, repeat: int) -> tuple[str, ...]:
        """What all runs of a repeat are told."""
        return "--force", "--seed", str(repeat), *self._options

    def _warmed(self, program: str) -> list[str]:
        """Prepare a program, run it once, and return its command line."""
        (found,) = find([program])
        command = found.command(self._build / "programs")
        if program not in self._warm:  # files into the page cache
            run_alone(command, self._build)
            self._warm.add(program)
        return command
