"""Tell whether folders of hibali_plugins were removed. The pages describe all of them, until somebody edits them."""

from __future__ import annotations

import re

import pytest

from tests.services.session import REPOSITORY


def removed_folders() -> set[str]:
    """Return the folders that docs/architecture.md lists and that are not there."""
    page = (REPOSITORY / "docs/architecture.md").read_text("utf-8")
    [row] = [line for line in page.splitlines() if line.startswith("| `hibali_plugins/` |")]
    listed = set(re.findall(r"`([a-z_]+)/`", row.partition("|")[2].partition("|")[2]))
    return {
        name for name in listed if not (REPOSITORY / "hibali_plugins" / name / "entry_points.txt").is_file()
    }


describes_all = pytest.mark.skipif(
    bool(removed_folders()), reason="the pages describe all folders of hibali_plugins, and some were removed"
)
