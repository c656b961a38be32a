"""What the configuration file may say, and how mistakes are told."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memsampd.daemon.config import SessionConfig
from memsampd.daemon.node.config import (
    ConfigError,
    NodeConfig,
    SessionOptions,
    default_socket,
    find_socket,
    parse_config,
    read_config,
    session_config,
)

GOOD = """
listen = "127.0.0.1:9753"

[budget]
own_cpu = 0.03

[session]
max_stop = 0.002

[[rules]]
name = "web"
command = "nginx"
user = "www-data"
follow_children = true

[rules.session]
window = 0.2

[[rules]]
name = "busy"
least_cpu = 0.5
"""


def test_a_file_says_what_is_wanted_and_the_rest_is_as_usual() -> None:
    config = parse_config(GOOD, "c.toml")
    assert config.budget.own_cpu == 0.03
    assert config.budget.holds == NodeConfig().budget.holds
    assert [rule.name for rule in config.rules] == ["web", "busy"]
    session = session_config(config.session, config.rules[0].session)
    assert (session.max_stop_seconds, session.window_seconds) == (0.002, 0.2)
    assert session.budget_share == SessionConfig().budget_share


def test_watchpoints_can_be_done_without() -> None:
    options = parse_config("[session]\nwatchpoints = false\n", "c.toml").session
    assert (session_config(options, SessionOptions()).watches, SessionConfig().watches) == (
        False,
        True,
    )


def test_nothing_is_a_configuration() -> None:
    assert parse_config("", "c.toml") == NodeConfig()
    assert session_config(SessionOptions(), SessionOptions()) == SessionConfig(
        random_replacement=False
    )


def test_random_replacement_is_for_who_asks() -> None:
    options = parse_config("[session]\nrandom_replacement = true\n", "c.toml").session
    assert session_config(options, SessionOptions()).random_replacement
    assert not session_config(options, SessionOptions(random_replacement=False)).random_replacement


@pytest.mark.parametrize(
    ("right", "wrong", "line", "words"),
    [
        ("least_cpu", "least_cpus", 21, "rules[1].least_cpus: there is no such key"),
        ("0.5", '"much"', 21, "rules[1].least_cpu: Expected `float`, got `str`"),
        ("own_cpu = 0.03", "own_cpu = 3", 5, "budget.own_cpu"),
        ("max_stop = 0.002", "max_stop = -1", 8, "session.max_stop"),
        ("window = 0.2", "window = 0.0001", 16, "--window"),
        ('name = "busy"', "", 19, "the key 'name' is missing"),
        ('name = "busy"', 'name = "web"', 20, "two rules are called 'web'"),
        ('name = "busy"', 'name = "user"', 20, "'user' is what targets are listed under"),
        ("least_cpu = 0.5", "", 19, "has no condition"),
        ("least_cpu = 0.5", 'command_line = "("', 21, "no regular expression"),
        ("least_cpu = 0.5", 'container = "my-app"', 21, "rules[1].container"),
        ("max_stop = 0.002", 'schedule = "often"', 8, "none of phase-guided"),
        ("127.0.0.1:9753", "everywhere", 2, "cannot listen on 'everywhere'"),
    ],
)
def test_mistakes_are_told_with_line_and_key(right: str, wrong: str, line: int, words: str) -> None:
    with pytest.raises(ConfigError) as told:
        parse_config(GOOD.replace(right, wrong), "c.toml")
    assert f"c.toml, line {line}:" in told.value.cause
    assert words.removeprefix("--") in told.value.cause
    assert told.value.remedy
    assert told.value.exit_status == 2


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("least_cpu", "least_cpus"), ("own_cpu", "own-cpu"), ("max_stop", "maxstop")],
)
def test_a_misspelt_key_is_answered_with_the_right_one(right: str, wrong: str) -> None:
    with pytest.raises(ConfigError) as told:
        parse_config(GOOD.replace(f"{right} =", f"{wrong} ="), "c.toml")
    assert f"did you mean {right}?" in told.value.remedy


def test_what_is_no_toml_is_said_to_be_none() -> None:
    with pytest.raises(ConfigError, match=r"is no TOML: .*line 3"):
        parse_config("listen = ''\n\n[budget\n", "c.toml")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing.toml cannot be read: No such file"):
        read_config(tmp_path / "missing.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"bytes.toml cannot be read: .*utf-8"):
        read_config(tmp_path / "bytes.toml")


@given(st.text(max_size=200))
def test_any_text_is_a_configuration_or_an_error(text: str) -> None:
    with suppress(ConfigError):
        parse_config(text, "c.toml")


def test_a_socket_that_a_killed_daemon_left_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    own = default_socket()
    machines = find_socket()
    assert machines != own
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(own))
        listening.listen()
        assert find_socket() == own
    assert own.exists()
    assert find_socket() == machines
