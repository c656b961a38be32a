"""``memsampd report``: recordings for people."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memsampd.cli.export import POLICIES, add_partial, check_whole, write_output
from memsampd.errors import UsageError

if TYPE_CHECKING:
    from memsampd.exporters.analysis import Analysis

_FIGURE_STEPS_PER_OCTAVE = 4


class ReportCommand:
    """Draws recordings, or prints their phases and curves."""

    name = "report"
    help = "show a recording: phase table and curve, or a figure with -o"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "recordings",
            nargs="+",
            type=Path,
            metavar="FILE",
            help="recording that attach or run wrote; several are shown side by side",
        )
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
        add_partial(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Report.

        Raises:
            UsageError: the figure's name has an ending of no known kind, or of one that shows one
                recording only, or is that of a recording.
            RecordingError: a recording cannot be read, or lacks its end, or the figure cannot be
                written.
            CapabilityError: matplotlib is missing.
        """
        from memsampd.exporters.analysis import analyse, usual_sizes
        from memsampd.exporters.recording import read_recording

        ending = None if args.output is None else args.output.suffix.lower()
        if ending not in (None, ".png", ".svg", ".html"):
            raise UsageError(
                f"cannot draw {args.output}", "give a name that ends in .png, .svg or .html"
            )
        if ending == ".html" and len(args.recordings) > 1:
            raise UsageError(
                "a page shows one recording", "draw several as .png or .svg, or one at a time"
            )
        recordings = {path: read_recording(path) for path in args.recordings}
        steps = 1 if ending is None else _FIGURE_STEPS_PER_OCTAVE
        sizes_bytes = usual_sizes(recordings.values(), steps)
        analyses = [analyse(recordings[path], args.policy, sizes_bytes) for path in args.recordings]
        if ending is None:
            from memsampd.exporters.text import to_text

            sys.stdout.write("\n".join(map(to_text, analyses)))
        else:
            drawn = _drawn(analyses, ending.removeprefix("."))
            write_output(args.output, drawn, args.recordings)
        check_whole(recordings, args.partial)
        return 0


def _drawn(analyses: Sequence[Analysis], format: str) -> bytes:
    """Draw one recording, or several side by side."""
    if format == "html":
        from memsampd.exporters.page import to_html

        return to_html(analyses[0]).encode()
    from memsampd.exporters.figure import draw, draw_beside

    return draw(analyses[0], format) if len(analyses) == 1 else draw_beside(analyses, format)


COMMAND = ReportCommand()
