"""Open a folder that is listed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agent_root import open_root
from transfers.agent.safe_path import Root


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    (tmp_path / "tree").mkdir()
    found = open_root(tmp_path / "tree")
    yield found
    found.close()
