"""``memsampd diff``: two recordings, before and after a release."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from memsampd.cli.export import add_curve_options, add_partial, check_whole


class DiffCommand:
    """Says what of two recordings is known to differ."""

    name = "diff"
    help = "compare two recordings, before and after a change"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("before", type=Path, help="recording that attach or run wrote")
        parser.add_argument("after", type=Path, help="a later one")
        parser.add_argument("--json", action="store_true", help="print a JSON document")
        add_curve_options(parser)
        add_partial(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Compare.

        Raises:
            UsageError: a size is malformed.
            RecordingError: a recording cannot be read.
        """
        from memsampd.exporters.analysis import analyse, caches_of, usual_sizes
        from memsampd.exporters.difference import difference
        from memsampd.exporters.difference_text import to_document, to_text
        from memsampd.exporters.recording import read_recording
        from memsampd.models.sizes import parse_sizes, with_caches

        asked = parse_sizes(args.sizes) if args.sizes else None
        recordings = {path: read_recording(path) for path in (args.before, args.after)}
        known = recordings.values()
        sizes_bytes = usual_sizes(known) if asked is None else with_caches(asked, caches_of(known))
        before, after = (
            analyse(recordings[path], args.policy, sizes_bytes)
            for path in (args.before, args.after)
        )
        found = difference(before, after, asked)
        if args.json:
            sys.stdout.write(f"{json.dumps(to_document(found, before, after), indent=1)}\n")
        else:
            sys.stdout.write(to_text(found, before, after))
        check_whole(recordings, args.partial)
        return 0


COMMAND = DiffCommand()
