"""``memsampd store``: what is kept of programs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memsampd.cli.list import columns
from memsampd.errors import MemsampdError, UsageError
from memsampd.names import printable

if TYPE_CHECKING:
    from memsampd.daemon.store.database import ProfileStore
    from memsampd.daemon.store.tables import ProfileLine

_HEADINGS = ("ID", "COMMAND", "USER", "PHASES", "BURSTS", "SIZE", "SAVED", "EXECUTABLE")


class StoreCommand:
    """Lists and deletes profiles."""

    name = "store"
    help = "list or forget what is kept of programs"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("what", choices=("list", "forget"), help="what to do")
        parser.add_argument(
            "--id", nargs="+", type=int, default=[], metavar="ID", help="profiles to forget"
        )
        parser.add_argument("--all", action="store_true", help="forget all profiles")
        parser.add_argument(
            "--file", type=Path, metavar="FILE", help="the store (default: the daemon's)"
        )
        parser.add_argument("--json", action="store_true", help="print the list as JSON")

    def run(self, args: argparse.Namespace) -> int:
        """Do it.

        Raises:
            MemsampdError: there is no store, it cannot be used, or a profile is not there.
        """
        if args.what == "list":
            if args.id or args.all:
                raise UsageError("store list takes no profiles", "see memsampd store --help")
            return _list(args)
        if bool(args.id) == args.all:
            raise UsageError("say which profiles to forget", "give --id or --all")
        return _forget(args)


def _open(args: argparse.Namespace) -> ProfileStore:
    from memsampd.daemon.node.config import default_state_dir
    from memsampd.daemon.store.database import ProfileStore
    from memsampd.daemon.store.file import FILE_NAME

    path = args.file or default_state_dir() / FILE_NAME
    if not path.exists():
        raise MemsampdError(f"there is no store at {path}", "name another one with --file")
    return ProfileStore(path, sets_aside=False)


def _list(args: argparse.Namespace) -> int:
    store = _open(args)
    try:
        profiles = store.list()
        _check(store)
    finally:
        store.close()
    if args.json:
        keys = ("id", "command", "executable", "uid", "phases", "bursts")
        documents = [
            {
                **{key: getattr(each, key) for key in keys},
                "size_bytes": each.size_bytes,
                "saved_unix_seconds": each.saved_unix_seconds,
            }
            for each in profiles
        ]
        sys.stdout.write(json.dumps(documents) + "\n")
    else:
        sys.stdout.write(table(profiles))
    return 0


def _forget(args: argparse.Namespace) -> int:
    store = _open(args)
    try:
        known = {each.id for each in store.list()}
        count = store.forget(None if args.all else tuple(args.id))
        _check(store)
    finally:
        store.close()
    sys.stdout.write(
        f"{count} {'profile is' if count == 1 else 'profiles are'} forgotten; "
        "what is observed now is written again: detach it first\n"
    )
    if missing := sorted(set(args.id) - known):
        raise MemsampdError(
            f"there is no profile {', '.join(map(str, missing))}", "see memsampd store list"
        )
    return 0


def _check(store: ProfileStore) -> None:
    if store.trouble:
        raise MemsampdError(store.trouble, "see docs/store.md")


def table(profiles: Sequence[ProfileLine]) -> str:
    """Profiles as text, a line each."""
    rows = (
        (
            str(each.id),
            printable(each.command),
            str(each.uid),
            str(each.phases),
            str(each.bursts),
            f"{each.size_bytes / 1024:.0f} KiB",
            time.strftime("%Y-%m-%d %H:%M", time.localtime(each.saved_unix_seconds)),
            printable(each.executable),
        )
        for each in profiles
    )
    return columns([_HEADINGS, *rows])


COMMAND = StoreCommand()
