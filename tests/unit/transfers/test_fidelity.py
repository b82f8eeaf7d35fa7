"""Test the decisions about permissions, attributes and hard links, without a store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hibali.errors import RefusedError
from transfers.engine.endpoints import check_fidelity
from transfers.model.entry import Entry, Kind, Verification, deepest_first
from transfers.model.facts import Facts
from transfers.model.rules import Rules
from transfers.planning.plan_file import read_rules, rules_record
from transfers.planning.planner import FirstNames

FACTS = Facts("test", Verification.DIGEST, Verification.DIGEST)
PLAIN = Facts("test", Verification.DIGEST, Verification.DIGEST, modes=False)


def test_unsupported_metadata_is_refused_before_the_transfer() -> None:
    check_fidelity(Rules(), PLAIN, PLAIN, ("a", "b"))
    check_fidelity(Rules(modes="keep"), FACTS, FACTS, ("a", "b"))
    with pytest.raises(RefusedError) as refused:
        check_fidelity(Rules(modes="keep"), FACTS, PLAIN, ("a", "b"))
    assert (refused.value.code, refused.value.subject) == ("cannot-keep-modes", "b")
    rules, keys = Rules(keep_empty_folders=True), replace(FACTS, folders=False)
    check_fidelity(rules, keys, FACTS, ("a", "b"))
    check_fidelity(rules, FACTS, replace(keys, folder_markers=True), ("a", "b"))
    with pytest.raises(RefusedError) as refused:
        check_fidelity(rules, FACTS, keys, ("a", "b"))
    assert (refused.value.code, refused.value.subject) == ("cannot-keep-empty-folders", "b")
    assert read_rules(rules_record(rules)).keep_empty_folders


def test_a_folder_comes_after_its_contents() -> None:
    kinds = {
        b"a": Kind.FOLDER,
        b"a/b": Kind.FOLDER,
        b"a/b/c": Kind.FILE,
        b"a/d": Kind.FILE,
        b"e": Kind.FOLDER,
    }
    entries = sorted((Entry(path, kind) for path, kind in kinds.items()), key=lambda entry: entry.order)
    found = deepest_first(entries, lambda entry: entry)
    assert [entry.path for entry in found] == [b"a/b/c", b"a/b", b"a/d", b"a", b"e"]


def test_a_plan_of_an_earlier_version_keeps_only_the_execute_bit() -> None:
    record = rules_record(Rules(modes="keep"))
    assert read_rules(record).modes == "keep"
    del record["modes"]
    assert read_rules(record).modes == "execute"


def test_a_further_hard_link_refers_to_the_first_selected_name() -> None:
    names = FirstNames()
    listed = [(b"a", 1, 2), (b"b", 2, 3), (b"c", 1, 2), (b"d", 2, 3), (b"e", 3, 1), (b"f", 1, 2)]
    found = [names.mark(Entry(path, Kind.FILE, inode=inode, links=links)) for path, inode, links in listed]
    # after all names of a file were listed, another file may have its inode number
    assert [entry.same_as for entry in found] == [b"", b"", b"a", b"b", b"", b""]
    assert names.mark(Entry(b"g", Kind.FOLDER, inode=2, links=5)).same_as == b""
