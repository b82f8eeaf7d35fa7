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
        ("a5a41", A),
        ("a5a4f", C),
        ("0a1b", B),
        ("0a1", None),
        ("202602", C),
        ("2", None),
        ("-", None),
        ("1df7", None),
        ("0102-0304", None),
        ("030406", None),
        ("6-0a1b2c3d", None),
        ("notes", None),
        ("../../x", None),
        ("", None),
        ("zz", None),
        ("A5A41DF7", None),
    ],
)
def test_an_id_is_chosen_by_four_or_more_characters_of_its_beginning_or_of_that_of_its_last_part(
    typed: str, found: str | None
) -> None:
    assert choose_identifier(ALL, typed) == found


@pytest.mark.parametrize("typed", ["a5a4", "2026", "20260203"])
def test_candidates_are_listed(typed: str) -> None:
    with pytest.raises(UsageError) as raised:
        choose_identifier([*ALL, "20260102-030405-20260203"], typed)
    assert raised.value.code == "ambiguous-id"
    assert {A, C} & set(raised.value.message.splitlines())
    assert int(raised.value.exit) == 2


@pytest.mark.parametrize("typed", ["a5a41df7", "a5a41", "20260102-030405"])
def test_a_name_does_not_hide_the_run_whose_id_it_imitates(typed: str) -> None:
    with pytest.raises(UsageError) as raised:
        choose_identifier(ALL, typed, named=[B])
    assert {A, B} <= set(raised.value.message.splitlines())
    assert choose_identifier(ALL, "ffff", named=[B]) == B
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
