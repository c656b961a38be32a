"""The kept references: one JSON file a program in ``data/``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference.windows import ERROR_SIZES_BYTES, LRU_SIZES_BYTES, RunMisses

DATA = Path(__file__).with_name("data")
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Reference:
    """What was kept of one run.

    Attributes:
        name: the program.
        accesses: accesses of each window, shape (w,), int64.
        lru: misses a window and size of ``LRU_SIZES_BYTES``, shape (w, 17), int64.
        random: misses a window and size of ``ERROR_SIZES_BYTES``, shape (w, 12), int64.
        distinct_lines: lines touched by the run.
        made: how, when and with what it was made (see ``make_references.py``).
    """

    name: str
    accesses: NDArray[np.int64]
    lru: NDArray[np.int64]
    random: NDArray[np.int64]
    distinct_lines: int
    made: dict[str, Any]

    @property
    def total_accesses(self) -> int:
        """Accesses of the whole run."""
        return int(self.accesses.sum())


def path_of(name: str) -> Path:
    """Return where the reference of a program is kept."""
    return DATA / f"{name}.json"


def save(name: str, run: RunMisses, made: dict[str, Any], path: Path) -> None:
    """Write a reference, a window a line, so that versions compare well."""

    def rows(misses: NDArray[np.int64]) -> str:
        return ",\n".join(
            f"    {json.dumps(row, separators=(',', ':'))}" for row in misses.tolist()
        )

    accesses = json.dumps(run.accesses.tolist(), separators=(",", ":"))
    text = f"""{{
  "format": {FORMAT},
  "name": {json.dumps(name)},
  "made": {json.dumps(made, indent=4).replace(chr(10), chr(10) + "  ")},
  "total_accesses": {int(run.accesses.sum())},
  "distinct_lines": {run.distinct_lines},
  "lru_sizes_bytes": {json.dumps(LRU_SIZES_BYTES)},
  "random_sizes_bytes": {json.dumps(ERROR_SIZES_BYTES)},
  "window_accesses": {accesses},
  "lru_misses": [
{rows(run.lru)}
  ],
  "random_misses": [
{rows(run.random)}
  ]
}}
"""
    path.write_text(text, encoding="utf-8")


def load(path: Path) -> Reference:
    """Read a reference.

    Raises:
        FileNotFoundError: it was not made yet.
        ValueError: the file is of another format.
    """
    kept = json.loads(path.read_text(encoding="utf-8"))
    sizes = tuple(kept.get("lru_sizes_bytes", ())), tuple(kept.get("random_sizes_bytes", ()))
    if kept.get("format") != FORMAT or sizes != (LRU_SIZES_BYTES, ERROR_SIZES_BYTES):
        raise ValueError(f"{path}: not a reference of format {FORMAT}; make it again")
    return Reference(
        kept["name"],
        np.array(kept["window_accesses"], dtype=np.int64),
        np.array(kept["lru_misses"], dtype=np.int64),
        np.array(kept["random_misses"], dtype=np.int64),
        kept["distinct_lines"],
        kept["made"],
    )
