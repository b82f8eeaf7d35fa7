"""Test stripes of new folders on Lustre, with a program that records how `lfs` was called: Lustre needs kernel modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.transfers import Transfers

CALLED_WITH = "setstripe -c 8 {}\n"


@pytest.fixture
def lfs(hibali: Any, tmp_path: Path) -> Path:
    """Put an `lfs` first in PATH that knows only what the manual page lfs-setstripe(1) allows, and return its record."""
    record, folder = tmp_path / "record", tmp_path / "bin"
    folder.mkdir()
    program = folder / "lfs"
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$*" >> {record}\n'
        '[ "$1 $2" = "setstripe -c" ] && [ $# = 4 ] && [ -d "$4" ] || { echo "bad usage" >&2; exit 1; }\n'
        '[ -z "$(ls "$4" | grep -v "^.hibali$")" ] || { echo "not empty" >&2; exit 1; }\n'
        'case "$4" in */fails) echo "error: setstripe: Inappropriate ioctl for device" >&2; exit 25;; esac\n'
    )
    program.chmod(0o755)
    hibali.env["PATH"] = f"{folder}:{hibali.env['PATH']}"
    return record


def configure(there: Transfers, text: str = '[sites.there.stripe]\ndata = "8"\n') -> None:
    config = there.hibali.home.config
    config.write_text(config.read_text() + text)


def test_a_new_folder_is_striped_before_the_first_file(lfs: Path, local_there: Transfers) -> None:
    there = local_there
    configure(there)
    there.make({b"a": b"1"})
    answer = there.hibali("push", there.source, "there:data/new", exit=0)
    assert b"there:data/new is striped over 8 storage targets" in answer.err
    there.hibali("push", there.source, "there:data/new", exit=0)
    there.hibali("push", "--dry-run", there.source, "there:data/other", exit=0)
    assert lfs.read_text() == CALLED_WITH.format(there.root / "new")


def test_without_the_setting_nothing_is_called(lfs: Path, local_there: Transfers) -> None:
    local_there.make({b"a": b"1"})
    local_there.hibali("push", local_there.source, "there:data/new", exit=0)
    assert not lfs.exists()


def test_where_it_cannot_be_striped_the_data_arrives_and_it_is_noted(
    lfs: Path, local_there: Transfers
) -> None:
    there = local_there
    configure(there)
    there.make({b"a": b"1"})
    answer = there.hibali("push", there.source, "there:data/fails", exit=0)
    assert b"is not striped: error: setstripe: Inappropriate ioctl for device" in answer.err
    assert (there.root / "fails" / "a").read_bytes() == b"1"
    assert lfs.exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[sites.there.stripe]\ndata = "many"\n', b"is not a number of storage targets"),
        ('[sites.there.stripe]\nother = "8"\n', b"is not one of the roots"),
    ],
)
def test_a_wrong_setting_is_named(local_there: Transfers, text: str, words: bytes) -> None:
    configure(local_there, text)
    assert words in local_there.hibali("ls", "there:", exit=2).err
