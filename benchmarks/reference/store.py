"""The kept references: one file a program in ``data/``.

Format 2 is a zip file of numpy arrays (``numpy.load`` opens it) and ``about.json``. What grows with
the windows is kept as counts that do not overlap, transposed, and packed by LZMA.
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference.windows import (
    ERROR_SIZES_BYTES,
    FINE_SIZES_BYTES,
    LRU_SIZES_BYTES,
    REUSE_EDGES,
    BlockSamples,
    RunMisses,
)

DATA = Path(__file__).with_name("data")
FORMAT = 2
EPOCH = (1980, 1, 1, 0, 0, 0)  # in every member: the same reference makes the same file


@dataclass(frozen=True, slots=True)
class Reference:
    """What was kept of one run, in windows of equal numbers of accesses.

    Attributes:
        name: the program.
        accesses: accesses of each window, shape (w,), int64; all but the last are equal.
        lru: misses a window and size of ``LRU_SIZES_BYTES``, shape (w, 17), int64.
        random: misses a window and size of ``ERROR_SIZES_BYTES``, shape (w, 12), int64.
        distinct_lines: lines touched by the run.
        made: how, when and with what it was made (see ``make_references.py``).
        instructions: instructions of each window, shape (w,), int64.
        lru_fine: misses a window and size of ``FINE_SIZES_BYTES`` (four an octave, 1 KiB ..
            64 MiB), shape (w, f), int64: the stack-distance histogram, summed from above.
        reuses: accesses by reuse distance, shape (w, r), int64. Each access stands in the bin of
            the number of accesses since its line's last touch (``REUSE_EDGES``: bin b holds
            ``edges[b] <= d < edges[b + 1]``), in its own window, however old that touch is.
        cold: first touches of a line, shape (w,), int64; ``reuses.sum(1) + cold == accesses``.
        branches: samples of the blocks of code that the program was in.
    """

    name: str
    accesses: NDArray[np.int64]
    lru: NDArray[np.int64]
    random: NDArray[np.int64]
    distinct_lines: int
    made: dict[str, Any]
    instructions: NDArray[np.int64]
    lru_fine: NDArray[np.int64]
    reuses: NDArray[np.int64]
    cold: NDArray[np.int64]
    branches: BlockSamples

    @property
    def total_accesses(self) -> int:
        """Accesses of the whole run."""
        return int(self.accesses.sum())


def path_of(name: str) -> Path:
    """Return where the reference of a program is kept."""
    return DATA / f"{name}.npz"


def save(name: str, run: RunMisses, made: dict[str, Any], path: Path) -> None:
    """Write a reference: the same bytes for the same run."""
    blocks = run.branches
    about = {
        "format": FORMAT,
        "name": name,
        "made": made,
        "distinct_lines": run.distinct_lines,
        "lru_sizes_bytes": LRU_SIZES_BYTES,
        "random_sizes_bytes": ERROR_SIZES_BYTES,
        "fine_sizes_bytes": FINE_SIZES_BYTES,
        "reuse_edges": REUSE_EDGES.tolist(),
        "objects": blocks.objects,
    }
    arrays = {
        "accesses": run.accesses,
        "instructions": run.instructions,
        "stack_distances": _apart(run.lru_fine),
        "random_misses": _differences(run.random),
        "reuses": run.reuses,
        "block_object": blocks.object_index,
        "block_offset": _differences(blocks.offset),
        "block_instructions": blocks.instructions,
        "sample_starts": blocks.starts,
        "sample_blocks": _differences(blocks.block),
        "sample_counts": blocks.counts,
    }
    with zipfile.ZipFile(path, "w", compression=zipfile.ZIP_LZMA) as file:
        _add(file, "about.json", json.dumps(about, indent=1).encode())
        for key, array in arrays.items():
            packed = io.BytesIO()
            # Columns one after the other: what is alike stands together.
            np.lib.format.write_array(packed, np.asfortranarray(_smallest(array)))
            _add(file, f"{key}.npy", packed.getvalue())


def load(path: Path) -> Reference:
    """Read a reference.

    Raises:
        FileNotFoundError: it was not made yet.
        ValueError: the file is of another format.
    """
    with zipfile.ZipFile(path) as file:
        about = json.loads(file.read("about.json"))
        _check(path, about)
        get = {
            name.removesuffix(".npy"): _array(file.read(name))
            for name in file.namelist()
            if name.endswith(".npy")
        }
    fine = _summed(get["stack_distances"])
    columns = [FINE_SIZES_BYTES.index(size) for size in LRU_SIZES_BYTES]
    return Reference(
        name=about["name"],
        accesses=get["accesses"],
        lru=fine[:, columns],
        random=np.cumsum(get["random_misses"], axis=0),
        distinct_lines=about["distinct_lines"],
        made=about["made"],
        instructions=get["instructions"],
        lru_fine=fine,
        reuses=get["reuses"],
        cold=get["accesses"] - get["reuses"].sum(axis=1),
        branches=BlockSamples(
            objects=tuple(about["objects"]),
            object_index=get["block_object"],
            offset=np.cumsum(get["block_offset"]),
            instructions=get["block_instructions"],
            starts=get["sample_starts"],
            block=np.cumsum(get["sample_blocks"]),
            counts=get["sample_counts"],
        ),
    )


def _check(path: Path, about: dict[str, Any]) -> None:
    layout = {
        "lru_sizes_bytes": LRU_SIZES_BYTES,
        "random_sizes_bytes": ERROR_SIZES_BYTES,
        "fine_sizes_bytes": FINE_SIZES_BYTES,
        "reuse_edges": tuple(REUSE_EDGES.tolist()),
    }
    if about.get("format") != FORMAT or any(
        tuple(about.get(key, ())) != wanted for key, wanted in layout.items()
    ):
        raise ValueError(f"{path}: not a reference of format {FORMAT}; make it again")


def _add(file: zipfile.ZipFile, name: str, content: bytes) -> None:
    file.writestr(zipfile.ZipInfo(name, EPOCH), content, compress_type=zipfile.ZIP_LZMA)


def _array(content: bytes) -> NDArray[np.int64]:
    array = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    return np.ascontiguousarray(array, dtype=np.int64)


def _smallest(array: NDArray[np.int64]) -> NDArray[Any]:
    """Return the array in the smallest type that holds it."""
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    return array.astype(np.promote_types(np.min_scalar_type(low), np.min_scalar_type(high)))


def _apart(misses: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return what misses in each size but not in the next, and in the last, shape (w, f)."""
    return misses - np.pad(misses[:, 1:], ((0, 0), (0, 1)))


def _summed(distances: NDArray[np.int64]) -> NDArray[np.int64]:
    """Undo :func:`_apart`."""
    return np.cumsum(distances[:, ::-1], axis=1)[:, ::-1]


def _differences(array: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the steps from one row to the next, the first from 0: ``cumsum`` undoes it."""
    return np.diff(array, axis=0, prepend=np.zeros_like(array[:1]))
