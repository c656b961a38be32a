"""Native core of memsampd (see src/memsampd/_core/)."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

# ---- models: reuse histogram and exact references (lru.c, reuse_histogram.c, random_caches.c) ----

_Buffer = NDArray[Any] | bytes | bytearray | memoryview

REUSE_BINS: int
REUSE_EXACT_BITS: int
REUSE_OCTAVE_BITS: int
REUSE_LIMIT_BITS: int

def reuse_histogram(lines: _Buffer, /) -> tuple[bytes, bytes]: ...

class LruStack:
    def __new__(cls, sizes_lines: Sequence[int], max_hint: int = 0) -> LruStack: ...
    def feed(self, lines: _Buffer, distances: _Buffer | None = None) -> None: ...
    def take_misses(self) -> tuple[int, bytes]: ...
    @property
    def distinct_lines(self) -> int: ...

class RandomCaches:
    def __new__(cls, sizes_lines: Sequence[int], seed: int) -> RandomCaches: ...
    def feed(self, lines: _Buffer, /) -> None: ...
    def take_misses(self) -> tuple[int, bytes]: ...
