"""``memsampd check-config``: say whether the daemon could use a configuration."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from memsampd.names import printable

_SHOWN = 5  # processes of a rule


class CheckConfigCommand:
    """Reads a configuration as the daemon would."""

    name = "check-config"
    help = "check the daemon's configuration"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "file",
            type=Path,
            nargs="?",
            metavar="FILE",
            help="configuration (default: /etc/memsampd/config.toml)",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Say which processes each rule matches now, whatever CPU time they use.

        Raises:
            ConfigError: the daemon could not use it; the message names line and key.
        """
        from memsampd.daemon.node.config import CONFIG_PATH, read_config
        from memsampd.daemon.node.discovery import ProcessReader, matches

        path = args.file or CONFIG_PATH
        config = read_config(path)
        processes = ProcessReader().scan()
        sys.stdout.write(f"{path}: {len(config.rules)} rules, no mistakes\n")
        for rule in config.rules:
            found = [facts for facts in processes if matches(rule, facts)]
            which = ", ".join(
                f"{printable(each.command)} ({each.key.pid})" for each in found[:_SHOWN]
            )
            more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            matching = f"matches {which}{more}" if found else "matches no process"
            if found and rule.least_cpu:
                matching += f", of which it has those that use {rule.least_cpu:.0%} of a CPU,"
            sys.stdout.write(f"rule {rule.name}: {printable(matching)} now\n")
        return 0


COMMAND = CheckConfigCommand()
