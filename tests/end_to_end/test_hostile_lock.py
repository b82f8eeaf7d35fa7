"""Test that no file that others can write at a shared target ends a command with a bug."""

from __future__ import annotations

import pytest

from tests.support.transfers import Transfers


@pytest.mark.parametrize(("name", "code"), [("lock", 5), ("journal", 0), ("begun", 0)])
def test_deep_brackets_in_a_file_of_hibali_at_the_target_are_no_bug(
    folder_there: Transfers, name: str, code: int
) -> None:
    folder_there.make({b"a": b"1"})
    folder_there.push()
    own = folder_there.root / ".hibali"
    own.mkdir(mode=0o700)
    (own / name).write_bytes(b"[" * 100_000 + b"\n")
    (own / name).chmod(0o600)
    folder_there.make({b"a": b"1", b"b": b"2"})
    folder_there.push(exit=code)
    assert (b"b" in folder_there.there()) == (code == 0)
