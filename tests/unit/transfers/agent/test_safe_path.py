"""Test that paths below a root are checked, also where their folder is open already."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from transfers.agent.protocol import UnsafeNameError
from transfers.agent.safe_path import Root


@pytest.mark.parametrize("name", [b"..", b".", b"", b"a\0b", b"/x", b"../x"])
def test_unsafe_name_in_a_folder_that_is_open_is_refused(tmp_path: Path, name: bytes) -> None:
    (tmp_path / "folder").mkdir()
    with closing(Root(os.open(tmp_path, os.O_RDONLY))) as root:
        opened = root.parent(b"folder/file")
        assert root.parent(b"folder/other") == opened
        with pytest.raises(UnsafeNameError):
            root.parent(b"folder/" + name)
