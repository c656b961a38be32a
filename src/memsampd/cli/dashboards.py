"""``memsampd dashboards``: Grafana's dashboards and Prometheus's rules, as files."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from memsampd.cli.export import write_output
from memsampd.errors import RecordingError


class DashboardsCommand:
    """Writes the files that come with memsampd for Grafana and Prometheus."""

    name = "dashboards"
    help = "write Grafana dashboards, and rules and alerts for Prometheus"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "--out",
            type=Path,
            required=True,
            metavar="DIR",
            help="where to: DIR/grafana/*.json and DIR/prometheus/*.yml; what is there is replaced",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Write them, and print their paths.

        Raises:
            RecordingError: one cannot be written.
        """
        from importlib.resources import files

        for folder in ("grafana", "prometheus"):
            directory = args.out / folder
            try:
                directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise RecordingError(
                    f"cannot make {directory}: {error.strerror}", "choose a writable directory"
                ) from error
            kept = files("memsampd").joinpath("monitoring", folder)
            for file in sorted(kept.iterdir(), key=lambda each: each.name):
                write_output(directory / file.name, file.read_bytes())
                sys.stdout.write(f"{directory / file.name}\n")
        return 0


COMMAND = DashboardsCommand()
