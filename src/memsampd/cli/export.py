"""``memsampd export``: a recording as JSON or CSV."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memsampd.errors import RecordingError, UsageError

if TYPE_CHECKING:
    from memsampd.exporters.recording import Recording

POLICIES = ("lru", "random")  # the keys of models.policies.MODELS, which is slow to import


class ExportCommand:
    """Writes the curves of every window and phase for other programs."""

    name = "export"
    help = "write a recording's curves as JSON or CSV"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("recording", type=Path, help="file that attach or run wrote")
        parser.add_argument("--format", choices=("json", "csv"), required=True)
        add_curve_options(parser)
        parser.add_argument(
            "-o", "--output", type=Path, metavar="OUT", help="file to write (default: stdout)"
        )
        add_partial(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Export.

        Raises:
            UsageError: a size is malformed, or the output is the recording.
            RecordingError: the recording cannot be read or the output not be written.
        """
        from memsampd.exporters.analysis import analyse, usual_sizes
        from memsampd.exporters.recording import read_recording
        from memsampd.exporters.tables import to_csv, to_json
        from memsampd.models.sizes import parse_sizes

        asked = parse_sizes(args.sizes) if args.sizes else None
        recording = read_recording(args.recording)
        sizes_bytes = usual_sizes([recording]) if asked is None else asked
        analysis = analyse(recording, args.policy, sizes_bytes)
        text = to_json(analysis) if args.format == "json" else to_csv(analysis)
        if args.output is None:
            sys.stdout.write(text)
        else:
            write_output(args.output, text.encode(), [args.recording])
        check_whole({args.recording: recording}, args.partial)
        return 0


def add_curve_options(parser: argparse.ArgumentParser) -> None:
    """Declare of which caches curves are wanted."""
    parser.add_argument(
        "--policy",
        choices=POLICIES,
        default="lru",
        help="replacement policy (default: %(default)s)",
    )
    parser.add_argument(
        "--sizes",
        metavar="SIZE,...",
        help="cache sizes, such as 32KiB,1MiB (default: powers of two from 1 KiB to 64 MiB, or to "
        "the first above the machine's caches, and these)",
    )


def add_partial(parser: argparse.ArgumentParser) -> None:
    """Declare the option that makes a recording good that does not end as it should."""
    parser.add_argument(
        "--partial",
        action="store_true",
        help="a recording that is truncated, or still written, is no failure",
    )


def check_whole(recordings: Mapping[Path, Recording], partial: bool) -> None:
    """Fail, once what there is was shown, if a recording lacks its end.

    Args:
        recordings: by the paths that they were read from.
        partial: the user expects that.

    Raises:
        RecordingError: one does.
    """
    for path, recording in recordings.items():
        for warning in recording.warnings if not partial else ():
            raise RecordingError(
                f"{path}: {warning}", "what is there is shown; --partial takes it for good"
            )


def write_output(path: Path, data: bytes, inputs: Sequence[Path] = ()) -> None:
    """Write a result; a file that is there is replaced.

    Args:
        path: where to.
        data: the result.
        inputs: files that it was made from.

    Raises:
        UsageError: it would replace one of those.
        RecordingError: it cannot be written.
    """
    try:
        check_no_input(path, inputs)
        path.write_bytes(data)
    except OSError as error:
        raise RecordingError(
            f"cannot write {path}: {error.strerror}", "choose a file in a writable directory"
        ) from error


def check_no_input(path: Path, inputs: Sequence[Path]) -> None:
    """Check that an output is none of the files that it is made from.

    Raises:
        UsageError: it is one.
        OSError: one of them is gone.
    """
    if path.exists() and any(path.samefile(each) for each in inputs):
        raise UsageError(f"{path} would overwrite itself", "choose another name")


COMMAND = ExportCommand()
