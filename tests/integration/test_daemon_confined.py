"""The unit file: what systemd's own tools say of it, and the daemon under what it takes away."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from commands import MEMSAMPD
from daemons import daemon
from tracees import compile_c, running
from waiting import wait_for

from memsampd.sampler.process.status import read_status

UNIT = Path(__file__).parents[2] / "systemd" / "memsampd.service"
MOST_EXPOSURE = 3.5
BUSY = ("sh", "-c", "while :; do :; done")
NOBODY = 65534

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (package systemd)"
)
needs_setpriv = pytest.mark.skipif(
    shutil.which("setpriv") is None or os.geteuid() != 0,
    reason="needs root and setpriv (package util-linux)",
)


def settings(name: str) -> list[str]:
    """The values of a setting of the unit, in order."""
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


def analyze(*words: str) -> str:
    done = subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit, with the program where it is."""
    installed = tmp_path / UNIT.name
    installed.write_text(UNIT.read_text().replace("/usr/bin/memsampd", MEMSAMPD))
    return installed


@needs_systemd
def test_systemd_finds_no_mistake_in_the_unit(unit: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
def test_systemd_says_how_exposed_it_is(unit: Path) -> None:
    told = json.loads(
        analyze("security", "--offline=true", "--json=short", "--no-pager", str(unit))
    )
    text = analyze("security", "--offline=true", "--no-pager", str(unit))
    exposure = float(re.findall(r"Overall exposure level.*: ([\d.]+)", text)[0])
    kept = sorted(each["name"] for each in told if not each["set"] and each["exposure"])
    sys.stdout.write(f"exposure {exposure}; not taken away: {', '.join(map(str, kept))}\n")
    assert exposure <= MOST_EXPOSURE


def test_a_daemon_that_ends_again_and_again_stays_ended() -> None:
    (interval,), (burst,), (pause,) = map(
        settings, ("StartLimitIntervalSec", "StartLimitBurst", "RestartSec")
    )
    assert int(burst) * int(pause) < int(interval)


def test_the_daemon_talks_to_this_machine_only() -> None:
    assert (settings("IPAddressDeny"), settings("IPAddressAllow")) == (["any"], ["localhost"])


def test_nothing_can_have_the_daemon_wait_while_it_holds_a_target() -> None:
    assert not settings("CPUQuota")
    assert not settings("MemoryHigh")


# Denies what MemoryDenyWriteExecute does, and all calls but the numbers on its input; then it
# becomes another program.
CONFINE = r"""
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def must(result):
    if result:
        raise OSError(ctypes.get_errno(), "prctl")
must(libc.prctl(38, 1, 0, 0, 0))  # PR_SET_NO_NEW_PRIVS
libc.prctl(65, 1, 0, 0, 0)  # PR_SET_MDWE, from Linux 6.3
numbers = sorted(map(int, open(sys.argv[1]).read().split()))
LOAD, JUMP, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050001
code = [(LOAD, 0, 0, 0)]
for number in numbers:
    code += [(JUMP, 0, 1, number), (RETURN, 0, 0, ALLOW)]
code.append((RETURN, 0, 0, REFUSE))
raw = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in code))
program = struct.pack("=HxxxxxxQ", len(code), ctypes.addressof(raw))
must(libc.prctl(22, 2, ctypes.c_char_p(program), 0, 0))  # PR_SET_SECCOMP
os.execv(sys.argv[2], sys.argv[2:])
"""


def allowed_calls(tmp_path: Path) -> Path:
    """A file with the numbers of the calls that the unit's filter allows on this machine."""
    groups: dict[str, list[str]] = {}
    for line in analyze("syscall-filter", "--no-pager").splitlines():
        if line.startswith("@"):
            group = groups.setdefault(line.split()[0], [])
        elif line.strip() and not line.strip().startswith("#"):
            group.append(line.strip())

    def calls(word: str) -> set[str]:
        if not word.startswith("@"):
            return {word}
        return set().union(*map(calls, groups[word]))

    allowed: set[str] = calls("@default")
    for value in settings("SystemCallFilter"):
        named = set().union(*map(calls, value.removeprefix("~").split()))
        allowed = allowed - named if value.startswith("~") else allowed | named
    names = "".join(f"#ifdef SYS_{name}\nSYS_{name},\n#endif\n" for name in sorted(allowed))
    program = compile_c(
        tmp_path,
        "#include <stdio.h>\n#include <sys/syscall.h>\n"
        f"static const int calls[] = {{\n{names}}};\n"
        "int main(void) { for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++)"
        ' printf("%d\\n", calls[i]); }\n',
    )
    numbers = tmp_path / "calls"
    numbers.write_bytes(subprocess.run([program], capture_output=True, check=True).stdout)
    return numbers


@needs_systemd
@needs_setpriv
@pytest.mark.skipif(platform.machine() != "x86_64", reason="bursts need x86-64")
@pytest.mark.parametrize("user", [0, NOBODY])
def test_bursts_come_with_the_rights_that_the_unit_leaves(tmp_path: Path, user: int) -> None:
    """Capabilities, system calls, no memory both written and executed: as systemd would have it."""
    (tmp_path / "confine.py").write_text(CONFINE)
    kept = [
        name.removeprefix("CAP_").lower() for name in settings("CapabilityBoundingSet")[0].split()
    ]
    rights = ",".join(["-all", *(f"+{name}" for name in kept)])
    before = (
        "setpriv",
        "--no-new-privs",
        f"--bounding-set={rights}",
        f"--inh-caps={rights}",
        sys.executable,
        str(tmp_path / "confine.py"),
        str(allowed_calls(tmp_path)),
        sys.executable,
    )
    with (
        running(*BUSY, user=user, group=user) as target,
        daemon(tmp_path / "d", before=before, options=("--listen", "127.0.0.1:0")) as confined,
    ):
        rights_mask = read_status(confined.process.pid).cap_effective
        assert rights_mask.bit_count() == len(kept)
        confined.ask("attach", pid=target.pid)
        found = confined.wait_for(
            lambda targets: (each := targets.get(target.pid)) and each.get("bursts") and each
        )
        assert found["caches"][0]["miss_ratio"] is not None
        wait_for(lambda: f'pid="{target.pid}"' in _metrics(confined.log), lambda: confined.log)
        assert confined.stop() == 0
        assert target.poll() is None


def _metrics(log: str) -> str:
    """What is served at the address that a log names."""
    port = re.findall(r"http://127.0.0.1:(\d+)", log)[0]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text: str = answer.read().decode()
        return text
