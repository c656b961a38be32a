"""Fuzzes the parsers of perf records, guided by the code that inputs reach: ``make fuzz``.

usage: scripts/fuzz [SECONDS]

Inputs that found something new are kept in build/fuzz/corpus for the next run, one that fails is
written to build/fuzz; ``scripts/fuzz FILE`` tries it again.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["memsampd.sampler.walk.thread_samples"]):
    import perf_inputs

FOLDER = Path(__file__).resolve().parents[2] / "build" / "fuzz"
MOST_BYTES = 4096


def main(argument: str) -> None:
    """Fuzz for so many seconds, or try one file."""
    corpus, seeds = FOLDER / "corpus", FOLDER / "seeds"
    for folder in (corpus, seeds):
        folder.mkdir(parents=True, exist_ok=True)
    for seed in perf_inputs.seeds():
        (seeds / hashlib.sha1(seed).hexdigest()).write_bytes(seed)
    options = [f"-max_len={MOST_BYTES}", f"-artifact_prefix={FOLDER}/", "-print_final_stats=1"]
    if argument.isdecimal():
        options += [f"-max_total_time={argument}", str(corpus), str(seeds)]
    else:
        options.append(argument)
    atheris.Setup([sys.argv[0], *options], perf_inputs.check)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
