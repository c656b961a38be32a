"""How a benchmark begins and ends: usual options; figures kept, missed goals told, the status."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path


def add_options(parser: argparse.ArgumentParser, quick: str) -> None:
    """Declare ``--quick``, with what it makes less, and ``--json``."""
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")


def finish(path: Path | None, figures: object, missed: Sequence[str]) -> int:
    """Keep the figures, if there is a file for them, and tell the goals that were missed.

    Args:
        path: the file.
        figures: of what JSON has, and of dataclasses.
        missed: goals, with what was measured.

    Returns:
        The exit status.
    """
    if path is not None:
        path.write_text(json.dumps(figures, indent=1, default=asdict) + "\n", encoding="utf-8")
    print(
        *(f"goal missed: {each}" for each in missed), *(() if missed else ["goals met"]), sep="\n"
    )
    return int(bool(missed))
