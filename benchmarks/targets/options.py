"""The command line of benchmarks that observe targets by one or two installations."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from targets.comparing import ALONE
from verdict import add_options

_Way = TypeVar("_Way")


def parser(doc: str | None, names: Sequence[str], quick: str) -> argparse.ArgumentParser:
    """Return what reads the options that all of them have.

    Args:
        doc: of the benchmark; its first line says what it does.
        names: of all targets.
        quick: what its quick form is.
    """
    options = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    add_options(options, quick)
    options.add_argument("--busy", action="store_true", help="keep every CPU busy besides")
    options.add_argument(
        "--only",
        nargs="+",
        choices=names,
        default=[],
        help=f"these targets: {', '.join(names)}",
        metavar="NAME",
    )
    own = Path(sys.executable).with_name("memsampd")
    options.add_argument("--memsampd", type=Path, metavar="PATH", default=own)
    options.add_argument("--other", type=Path, metavar="PATH", help="measured beside it")
    return options


def in_turn(installations: dict[str, Path], number: int) -> list[tuple[str, Path | None]]:
    """Return what observes in a round, none first of all; each round begins with another one."""
    return rotated([(ALONE, None), *installations.items()], number)


def rotated(ways: Sequence[_Way], number: int) -> list[_Way]:
    """Return all of them in the order of a round; each round begins with another one."""
    first = number % len(ways)
    return [*ways[first:], *ways[:first]]


def installations(args: argparse.Namespace) -> dict[str, Path]:
    """Return what observes, by name."""
    return {"memsampd": args.memsampd} | ({"other": args.other} if args.other else {})
