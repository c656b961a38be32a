"""The forms that memsampd brings with it are what the decoder says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from memsampd.errors import MemsampdError
from memsampd.sampler.replica import common_forms
from memsampd.sampler.replica.decoder import UNSUPPORTED


def test_what_is_kept_is_what_the_decoder_says() -> None:
    kept = common_forms.read()
    assert len(kept) > 1000
    again = common_forms.describe(bytes(row["example"]) for row in kept)
    assert again["form"].tobytes() == kept["form"].tobytes()


def test_plain_code_needs_no_other_forms() -> None:
    code = [
        bytes.fromhex(text)
        for text in ("4889e5", "8b4508", "c3", "0f1f00", "f20f1005000000 00".replace(" ", ""))
    ]
    known = set(common_forms.read()["form"]["key"].tolist())
    assert set(common_forms.describe(code)["form"]["key"].tolist()) <= known


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    file = tmp_path / "forms.bin"
    file.write_bytes(common_forms.FILE.read_bytes()[:-20])
    with pytest.raises(MemsampdError, match="install memsampd again"):
        common_forms.read(file)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "forms.bin"
    common_forms.write([b"\x90", b"\xc3", b"\x06"], file)  # the last is no instruction
    first = {bytes(example[:1]) for example in np.asarray(common_forms.read(file)["example"])}
    assert first >= {b"\x90", b"\xc3"}


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("c8100001", id="enter 16, 1"),
        pytest.param("660f38f818", id="movdir64b rbx, [rax]"),
        pytest.param("8ee0", id="mov fs, eax"),
        pytest.param("0fa1", id="pop fs"),
        pytest.param("480fb407", id="lfs rax, [rdi]"),
    ],
)
def test_what_samples_do_not_tell_ends_bursts(code: str) -> None:
    (row,) = common_forms.describe([bytes.fromhex(code)])
    assert row["form"]["flags"] & UNSUPPORTED


def test_registers_above_15_in_addresses_are_another_form() -> None:
    """APX: no key tells them from those below."""
    plain, b4, x4 = (
        common_forms.describe([bytes.fromhex(code)])
        for code in ("62f17c481000", "62f97c481000", "62f178481000")
    )
    assert len(plain) == 1
    assert not {int(row["form"]["key"]) for each in (b4, x4) for row in each} & set(
        plain["form"]["key"].tolist()
    )


def test_shifts_write_flags_though_those_by_nothing_do_not() -> None:
    by_four, moved = (common_forms.describe([bytes.fromhex(code)]) for code in ("c1e804", "89c3"))
    assert by_four[0]["form"]["effects"] != 0
    assert moved[0]["form"]["effects"] == 0
