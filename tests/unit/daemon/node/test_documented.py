"""What docs/daemon.md shows is what the daemon takes."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from memsampd.cli.main import build_parser
from memsampd.daemon.node.config import Rule, SessionOptions, parse_config
from memsampd.daemon.node.protocol import Request

TEXT = (Path(__file__).parents[4] / "docs" / "daemon.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    return [body for named, body in fenced if named == language]


def test_the_configuration_that_is_shown_can_be_used() -> None:
    (text,) = blocks("toml")
    assert [rule.name for rule in parse_config(text, "docs").rules] == ["web", "database", "jobs"]


def test_all_keys_of_rules_are_described() -> None:
    for name in (*Rule.__struct_fields__, *SessionOptions.__struct_fields__):
        assert f"`{name}`" in TEXT, name


def test_the_requests_that_are_shown_are_requests() -> None:
    (text,) = blocks("json")
    assert len([msgspec.json.decode(line, type=Request) for line in text.splitlines()]) == 6


def test_the_commands_that_are_shown_can_be_parsed() -> None:
    lines = [line.split("#")[0].split() for block in blocks("") for line in block.splitlines()]
    commands = [words[1:] for words in lines if words[:1] == ["memsampd"]]
    assert len(commands) >= 6
    for words in commands:
        assert build_parser().parse_args(words).command.name == words[0]
