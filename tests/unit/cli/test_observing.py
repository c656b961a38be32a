"""What commands load to observe."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from memsampd.cli.observing import loading
with loading():
    import memsampd.daemon.attach
names = ("numpy._core._add_newdocs", "typing_extensions")
print([name in sys.modules for name in names])
import numpy, typing_extensions
print(numpy.arange(6).reshape(2, 3).sum(axis=0).tolist(), typing_extensions.Required is not None)
import numpy._core._add_newdocs
print(bool(numpy.ndarray.sum.__doc__))
"""


def test_what_is_not_needed_is_not_loaded_and_can_be_later() -> None:
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    told = ["[False, False]", "[3, 5, 7] True", "True"]
    assert done.stdout.splitlines() == told
