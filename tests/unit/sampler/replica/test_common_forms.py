"""The forms that memsampd brings with it are what the decoder says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from memsampd.errors import MemsampdError
from memsampd.sampler.replica import common_forms


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
