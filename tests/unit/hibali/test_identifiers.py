"""Test choosing an id by what a user typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hibali.errors import UsageError
from hibali.ledger import choose_identifier, find_identifier, short_identifier

A, B, C = "20260102-030405-a5a41df7", "20260102-030406-0a1b2c3d", "20260203-030405-a5a4ffff"
ALL = [A, B, C, "notes", "../../x"]


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        (A, A),
        ("a5a41df7", A),
        ("20260203", C),
        ("20260102-030406", B),
        ("1df7", A),
        ("ffff", C),
        ("notes", None),
        ("../../x", None),
        ("", None),
        ("zz", None),
        ("A5A41DF7", None),
    ],
)
def test_an_id_is_chosen_by_its_last_part_its_beginning_or_a_part(typed: str, found: str | None) -> None:
    assert choose_identifier(ALL, typed) == found


def test_the_last_part_and_the_beginning_count_before_other_parts() -> None:
    inside = "20260102-030405-20260203"
    assert choose_identifier([*ALL, inside], "20260203") == inside
    assert choose_identifier([B, "20270101-010101-20260102"], "20260102-") == B


@pytest.mark.parametrize("typed", ["a5a4", "2026", "-"])
def test_candidates_are_listed(typed: str) -> None:
    with pytest.raises(UsageError) as raised:
        choose_identifier(ALL, typed)
    assert raised.value.code == "ambiguous-id"
    assert A in raised.value.message
    assert int(raised.value.exit) == 2


def test_a_name_does_not_hide_the_run_whose_id_it_imitates() -> None:
    with pytest.raises(UsageError) as raised:
        choose_identifier(ALL, "a5a41df7", named=[B])
    assert {A, B} <= set(raised.value.message.splitlines())
    assert choose_identifier(ALL, "ffff", named=[B]) == B  # a name counts before a part
    assert choose_identifier(ALL, "anything", named=[]) is None


def test_a_whole_id_counts_before_names(tmp_path: Path) -> None:
    (tmp_path / f"{A}.jsonl").touch()
    assert find_identifier(tmp_path, A, lambda _: [B]) == A


@given(st.text(max_size=40))
def test_what_is_typed_never_becomes_a_path(typed: str) -> None:
    try:
        found = choose_identifier(ALL, typed)
    except UsageError:
        return
    assert found in {A, B, C, None}


def test_ids_are_short_and_other_text_is_unchanged() -> None:
    assert short_identifier(A) == "a5a41df7"
    assert short_identifier("a-b") == "a-b"
