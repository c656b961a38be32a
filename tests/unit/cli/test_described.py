"""What describes the command line elsewhere is in step with the parser."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from tracees import sleeping

from memsampd.cli.command import COMMANDS
from memsampd.cli.completion import SHELLS, script
from memsampd.cli.main import build_parser
from memsampd.exporters.event_schema import event_schema

ROOT = Path(__file__).parents[3]


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield each command with its parser."""
    for action in build_parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def test_the_man_page_is_what_the_parser_says() -> None:
    made = subprocess.run(
        [sys.executable, ROOT / "scripts/man-page"], capture_output=True, text=True, check=True
    )
    kept = (ROOT / "docs/memsampd.1").read_text()
    assert made.stdout == kept, "python scripts/man-page > docs/memsampd.1"


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is not installed")
def test_the_man_page_is_well_formed() -> None:
    checked = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "error", ROOT / "docs/memsampd.1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


def test_every_command_and_option_is_in_the_documentation() -> None:
    overview = (ROOT / "docs/cli.md").read_text()
    pages = {ROOT / "docs" / page for page in re.findall(r"\(([\w-]+\.md)\)", overview)}
    text = "".join([overview, *(page.read_text() for page in sorted(pages))])
    for name, parser in parsers():
        assert f"memsampd {name}" in overview, name
        for action in parser._actions:
            options = [each for each in action.option_strings if each not in ("-h", "--help")]
            known = [each for each in options if re.search(rf"(?<!\w){each}\b", text)]
            assert known or not options, f"memsampd {name} {options}"


def test_the_documentation_names_no_option_that_is_gone() -> None:
    known = {option for _, parser in parsers() for option in parser._option_string_actions}
    # Those of a command of a command, and of other programs.
    known |= {"--limit", "--to", "--from", "--version", "--ignore-signal"}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", (ROOT / "docs/cli.md").read_text()))
    assert named <= known


def commands_of(path: Path) -> Iterator[list[str]]:
    """Yield the commands of memsampd in a document's blocks of code; not outlines of options."""
    blocks = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", path.read_text(), re.M | re.S)
    lines = (line for kind, text in blocks if kind in ("", "console") for line in text.splitlines())
    for line in lines:
        if re.match(r"\s*(\$ )?(\S*/)?memsampd ", line) and "[" not in line:
            command = line.strip().removeprefix("$ ").partition(">")[0]
            yield shlex.split(command, comments=True)[1:]


def test_commands_in_the_documents_are_understood() -> None:
    known, understood = dict(parsers()), 0
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for name, *words in commands_of(path):
            try:
                known[name].parse_args(words)
            except SystemExit:
                pytest.fail(f"{path.name}: memsampd {shlex.join([name, *words])}")
            understood += 1
    assert understood > 20


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_for_shells_are_well_formed(shell: str) -> None:
    text = script(shell)
    assert all(entry.name in text for entry in COMMANDS)
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n"], input=text, text=True, check=True)


def completed(shell: str, tmp_path: Path, line: str) -> list[str]:
    """What a shell offers at the end of a line."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    file = tmp_path / "script"
    file.write_text(script(shell))
    words = line.split(" ")
    command = {
        "fish": f"source {file}; complete -C '{line}'",
        "bash": f"source {file}; COMP_WORDS=({line} ''); COMP_CWORD={len(words) - 1}; "
        f"_shtab_memsampd memsampd '{words[-1]}' '{words[-2]}'; "
        "printf '%s\\n' \"${COMPREPLY[@]}\"",
    }[shell]
    if words[-1]:
        command = command.replace(f"({line} '')", f"({line})")
    done = subprocess.run([shell, "-c", command], capture_output=True, text=True, check=True)
    return [each.split("\t")[0] for each in done.stdout.splitlines()]


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_shells_offer_commands_choices_and_processes(shell: str, tmp_path: Path) -> None:
    assert completed(shell, tmp_path, "memsampd repo") == ["report"]
    assert completed(shell, tmp_path, "memsampd advise --goal ") == ["misses", "fairness"]
    with sleeping() as target:
        assert str(target.pid) in completed(shell, tmp_path, "memsampd attach ")


def test_the_schema_of_events_is_what_the_code_says() -> None:
    kept = json.loads((ROOT / "docs/events.schema.json").read_text())
    command = "python -m memsampd.exporters.event_schema > docs/events.schema.json"
    assert kept == event_schema(), command
    jsonschema.Draft202012Validator.check_schema(kept)
