"""What of a file besides its bytes is to arrive: decisions that need no store."""

from __future__ import annotations

import pytest

from hibali.errors import RefusedError
from transfers.entry import Entry, Kind, Proof
from transfers.fidelity import check_fidelity, deepest_first
from transfers.plan import Action, Verb
from transfers.plan_fields import rules_of
from transfers.plan_file import rules_record
from transfers.rules import Rules
from transfers.store import Facts

FACTS = Facts("test", Proof.DIGEST, Proof.DIGEST)
PLAIN = Facts("test", Proof.DIGEST, Proof.DIGEST, modes=False)


def test_what_a_side_cannot_keep_is_refused_before_anything_moves() -> None:
    check_fidelity(Rules(), PLAIN, PLAIN, ("a", "b"))
    check_fidelity(Rules(modes="keep"), FACTS, FACTS, ("a", "b"))
    with pytest.raises(RefusedError) as refused:
        check_fidelity(Rules(modes="keep"), FACTS, PLAIN, ("a", "b"))
    assert (refused.value.code, refused.value.about) == ("cannot-keep-modes", "b")


def test_a_folder_comes_behind_all_that_lies_in_it() -> None:
    kinds = {
        b"a": Kind.FOLDER,
        b"a/b": Kind.FOLDER,
        b"a/b/c": Kind.FILE,
        b"a/d": Kind.FILE,
        b"e": Kind.FOLDER,
    }
    entries = sorted((Entry(path, kind) for path, kind in kinds.items()), key=lambda entry: entry.order)
    found = deepest_first(Action(Verb.ADJUST, entry, "permissions differ", entry) for entry in entries)
    assert [action.entry.path for action in found] == [b"a/b/c", b"a/b", b"a/d", b"a", b"e"]


def test_a_plan_of_an_earlier_version_keeps_the_execute_bit_alone() -> None:
    record = rules_record(Rules(modes="keep"))
    assert rules_of(record).modes == "keep"
    del record["modes"]
    assert rules_of(record).modes == "execute"
