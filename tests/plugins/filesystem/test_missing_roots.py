"""Test that `hibali://` creates no configured root: it may be a filesystem that is not mounted, or misspelled."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hibali_plugins.filesystem.filesystem import HibaliFileSystem
from tests.support.transfers import Transfers


def test_python_creates_no_missing_root(unmounted: Transfers) -> None:
    file = str(unmounted.source / "a")
    files = HibaliFileSystem(str(unmounted.hibali.home.config), skip_instance_cache=True)
    calls: list[Callable[[], object]] = [
        lambda: files.pipe_file("there/data/x", b"1"),
        lambda: files.put_file(file, "there/data/x"),
        lambda: files.makedirs("there/data/new"),
    ]
    for call in calls:
        with pytest.raises(FileNotFoundError):
            call()
        assert not unmounted.root.parent.exists()
