"""``memsampd report``: a recording for people."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from memsampd.cli.export import POLICIES, write_output
from memsampd.errors import UsageError

_FIGURE_STEPS_PER_OCTAVE = 4


class ReportCommand:
    """Draws a recording, or prints its phases and curve."""

    name = "report"
    help = "show a recording: phase table and curve, or a figure with -o"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("recording", type=Path, help="file that attach or run wrote")
        parser.add_argument(
            "-o",
            "--output",
            type=Path,
            metavar="FILE",
            help="figure to write: .png, .svg or .html (needs memsampd[report])",
        )
        parser.add_argument(
            "--policy",
            choices=POLICIES,
            default="lru",
            help="replacement policy (default: %(default)s)",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Report.

        Raises:
            UsageError: the figure's name has an ending of no known kind.
            RecordingError: the recording cannot be read or the figure not be written.
            CapabilityError: matplotlib is missing.
        """
        from memsampd.exporters.analysis import analyse
        from memsampd.exporters.recording import read_recording
        from memsampd.models.sizes import default_sizes

        ending = None if args.output is None else args.output.suffix.lower()
        if ending not in (None, ".png", ".svg", ".html"):
            raise UsageError(
                f"cannot draw {args.output}", "give a name that ends in .png, .svg or .html"
            )
        recording = read_recording(args.recording)
        if ending is None:
            from memsampd.exporters.text import to_text

            sys.stdout.write(to_text(analyse(recording, args.policy, default_sizes())))
            return 0
        analysis = analyse(recording, args.policy, default_sizes(_FIGURE_STEPS_PER_OCTAVE))
        if ending == ".html":
            from memsampd.exporters.page import to_html

            data = to_html(analysis).encode()
        else:
            from memsampd.exporters.figure import draw

            data = draw(analysis, ending.removeprefix("."))
        write_output(args.output, data)
        return 0


COMMAND = ReportCommand()
