"""Test the roots of a site: a path, or a table with its properties."""

from __future__ import annotations

from typing import Any

import pytest

from hibali.config.edit import check_site_table
from hibali.errors import UsageError


def test_a_root_is_seen_by_nodes_unless_its_table_says_otherwise() -> None:
    roots = {"data": "/data", "home": {"path": "~/x"}, "archive": {"path": "$ARCHIVE", "nodes": False}}
    found = check_site_table("far", {"kind": "local", "roots": roots}).roots
    assert found == {"data": "/data", "home": "~/x", "archive": "$ARCHIVE"}
    assert [root.nodes for root in found.values()] == [True, True, False]


@pytest.mark.parametrize(
    ("root", "message"),
    [
        ("", "not an absolute path"),
        ("x", "not an absolute path"),
        (3, "must be a string"),
        ({"path": ""}, "not an absolute path"),
        ({"nodes": False}, "needs path"),
        ({"path": "/x", "nodes": "no"}, "true or false"),
        ({"path": "/x", "more": 1}, "unknown key"),
    ],
)
def test_a_wrong_root_is_named_with_its_reason(root: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"roots.data.*{message}"):
        check_site_table("far", {"kind": "local", "roots": {"data": root}})
