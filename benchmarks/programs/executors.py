"""Executors by name, so that every benchmark can run with each of them."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import cast

from memsampd.sampler.shadow.executors import ShadowExecutor

_CLASSES = {
    "step": ("memsampd.sampler.shadow.stepping", "SteppingExecutor"),
    "translate": ("memsampd.sampler.shadow.translating", "TranslatingExecutor"),
}
NAMES = tuple(_CLASSES)
DEFAULT = "translate"


def make_executor(name: str) -> ShadowExecutor:
    """Make a new executor, which has translated nothing yet."""
    module, cls = _CLASSES[name]
    make = cast(Callable[[], ShadowExecutor], getattr(importlib.import_module(module), cls))
    return make()


def add_option(parser: argparse.ArgumentParser) -> None:
    """Let the user choose which executor runs the shadows."""
    parser.add_argument(
        "--executor", choices=NAMES, default=DEFAULT, help=f"runs the shadows ({DEFAULT})"
    )
