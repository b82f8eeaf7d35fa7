"""Test that targets that ignore case are detected, and name clashes refused before the transfer.

No such filesystem can be mounted where these tests run, so its replies are simulated.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import pytest

from hibali.errors import RefusedError
from tests.properties.trees import ModelSide, Node
from tests.support.trees import make_tree
from transfers.agent import commands
from transfers.agent.commands import folds_case
from transfers.model.entry import Kind, Verification
from transfers.model.facts import Facts
from transfers.model.rules import Rules
from transfers.model.store import Side, Store
from transfers.planning.planner import check_plan, plan_transfer
from transfers.stores.renamed_source import RenamedSource

FACTS = Facts("test", Verification.DIGEST, Verification.DIGEST)
FOLDING = Facts("test", Verification.DIGEST, Verification.DIGEST, folds_case=True)


def side(*names: bytes, facts: Facts = FACTS) -> ModelSide:
    return ModelSide({name: Node(Kind.FILE, name, 1) for name in names}, facts)


def refused(source: Side, target: ModelSide, rules: Rules) -> str:
    found = plan_transfer(source, target, rules, target_exists=True)
    try:
        with pytest.raises(RefusedError) as caught:
            check_plan(found, rules, "there")
    finally:
        found.close()
    return caught.value.message


def test_names_that_differ_only_in_case_are_refused() -> None:
    source = side(b"README", b"readme", "caf\u00e9".encode(), "CAFE\u0301".encode(), b"\xff", b"other")
    message = refused(source, side(facts=FOLDING), Rules())
    assert "does not support 2 names" in message
    assert "readme: the target ignores case and cannot distinguish it from README" in message


def test_new_names_that_differ_only_in_case_are_refused() -> None:
    rules = Rules(rename=("s/^a$/readme/",))
    source = RenamedSource(cast("Store", side(b"README", b"a")), rules.rename)
    assert "distinguish it from README" in refused(source, side(facts=FOLDING), rules)


def test_an_existing_name_in_another_case_is_refused_and_not_deleted() -> None:
    assert "README" in refused(side(b"readme"), side(b"README", facts=FOLDING), Rules(delete=True))


def test_distinct_names_are_not_refused() -> None:
    for source, target in (
        (side(b"a", b"b"), side(b"a", b"C", facts=FOLDING)),
        (side(b"README", b"readme"), side()),
    ):
        found = plan_transfer(source, target, Rules(exclude=("x",)), target_exists=True)
        check_plan(found, Rules(), "there")
        found.close()


def test_a_case_sensitive_filesystem_is_detected(tmp_path: Path) -> None:
    folder = make_tree(tmp_path / "Folder", {b"1": b"", b"name": b""})
    (folder / "NAME").hardlink_to(folder / "name")
    assert not folds_case(os.fsencode(folder))
    assert not folds_case(os.fsencode(make_tree(tmp_path / "empty", {})))


@pytest.mark.parametrize("names", [{}, {b"12": b""}, {b"Some": b""}])
def test_a_case_insensitive_filesystem_is_detected_by_any_name(
    names: dict[bytes, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = os.fsencode(make_tree(tmp_path / "target", names))
    real = os.lstat

    def lstat(path: bytes) -> os.stat_result:
        above, name = os.path.split(path)
        there = {one.lower(): one for one in os.listdir(above)}  # noqa: PTH208 - names are bytes
        return real(os.path.join(above, there.get(name.lower(), name)))  # noqa: PTH118 - names are bytes

    monkeypatch.setattr(commands.os, "lstat", lstat)
    assert folds_case(folder)
