"""Forms of instructions that most programs use, described beforehand (``common_forms.bin``).

To describe a form takes 0.1 ms of Python, for which a target that is held cannot wait: a burst ends
there. ``benchmarks/make_forms.py`` makes the file from what :class:`FormDecoder` says; a test
compares.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memsampd import _core
from memsampd.errors import MemsampdError
from memsampd.sampler.replica.forms import FORM, FormDecoder

FILE = Path(__file__).with_name("common_forms.bin")
_INSTRUCTION_BYTES = 15
KEPT = np.dtype([("example", "u1", _INSTRUCTION_BYTES), ("form", FORM)])


def describe(examples: Iterable[bytes]) -> NDArray[np.void]:
    """Describe the forms of some instructions.

    Returns:
        A row for each form, shape (n,), dtype :data:`KEPT`, in the order of their keys.
    """
    decoder = FormDecoder()
    kept: dict[int, NDArray[np.void]] = {}
    for example in examples:
        taken = _core.take_apart(example)
        if taken is None:
            continue
        key, _, sample, operands_bytes = taken
        row = np.zeros((), KEPT)
        row["example"][: len(example)] = np.frombuffer(example, np.uint8)
        row["form"] = decoder.describe(key, sample, operands_bytes)
        kept[key] = row
    return np.array([kept[key] for key in sorted(kept)], KEPT)


def write(examples: Iterable[bytes], file: Path = FILE) -> int:
    """Keep the forms of some instructions; returns the size of the file in bytes."""
    packed = zlib.compress(describe(examples).tobytes(), 9)
    file.write_bytes(packed)
    return len(packed)


def read(file: Path = FILE) -> NDArray[np.void]:
    """Return what is kept, dtype :data:`KEPT`.

    Raises:
        MemsampdError: the file is damaged.
    """
    try:
        return np.frombuffer(zlib.decompress(file.read_bytes()), KEPT)
    except (OSError, ValueError, zlib.error) as error:
        raise MemsampdError(f"{file} cannot be read: {error}", "install memsampd again") from error


def common_forms() -> bytes:
    """Return all forms that are kept, one after the other, as ``Replica.add_forms`` takes them."""
    return np.ascontiguousarray(read()["form"]).tobytes()
