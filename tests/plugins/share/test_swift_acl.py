"""Test changes of access lists of Swift: other elements stay as they are, and what is given is taken away again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hibali.config.model import S3Settings
from hibali.errors import AccessError, TryLaterError
from hibali_plugins.share import swift_acl
from hibali_plugins.share.swift_acl import (
    ContainerSharing,
    SwiftContainers,
    people_in,
    with_person,
    without_person,
)
from transfers.model.entry import Entry, Kind
from transfers.model.sharing import Grant, Permission

PEOPLE = ("p1:anna", "p1:*", "everyone")
elements = st.lists(
    st.sampled_from([".r:*", ".rlistings", ".r:example.org", "p1:anna", "p2:bob", "*:carol"]), unique=True
)
lists = st.builds(
    lambda read, write: {Permission.READ: tuple(read), Permission.WRITE: tuple(write)}, elements, elements
)
grants = st.builds(Grant, st.sampled_from(PEOPLE), st.sampled_from(Permission))


@given(lists, grants)
def test_a_grant_is_given_once_and_taken_away_whole(
    found: dict[Permission, tuple[str, ...]], grant: Grant
) -> None:
    new = with_person(found, grant)
    assert with_person(new, grant) == new
    assert (grant.who, grant.permission) in {
        (each.grant.who, each.grant.permission) for each in people_in(new)
    }
    assert without_person(new, grant.who) == without_person(found, grant.who)
    assert grant.who not in {each.grant.who for each in people_in(without_person(new, grant.who))}


@given(lists, grants)
def test_elements_of_others_stay_in_their_order(
    found: dict[Permission, tuple[str, ...]], grant: Grant
) -> None:
    own = {".r:*", ".rlistings"} if grant.who == "everyone" else {grant.who}
    for permission, before in found.items():
        after = with_person(found, grant)[permission]
        assert [each for each in after if each not in own] == [each for each in before if each not in own]


class _Requests:
    bucket = "b"
    subject = "swift:b"


class _OthersEdit:
    """Containers whose lists somebody else replaces at every moment."""

    names = ("b", "b+segments")

    def __init__(self) -> None:
        self.created: list[str] = []

    def lists(self, container: str) -> Any:
        return None if container not in self.created else dict.fromkeys(Permission, ("p9:other",))

    def set_lists(self, container: str, lists: Any, *, create: bool) -> None:
        assert create
        assert lists[Permission.READ] == ("p1:anna",)
        self.created.append(container)


def test_a_list_that_somebody_else_replaces_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = S3Settings("https://s3.example.org", swift_url="https://s3.example.org/v1/AUTH_x")
    sharing = ContainerSharing(_Requests(), settings, b"")  # type: ignore[arg-type]
    sharing._containers = _OthersEdit()  # type: ignore[assignment]
    monkeypatch.setattr(sharing, "plan", lambda *_: None)
    with pytest.raises(TryLaterError, match="same moment"):
        sharing.add(Entry(b"", Kind.FOLDER), Grant("p1:anna", Permission.READ))


@pytest.mark.parametrize("printed", ["", "two words", "x" * 20_000, "line\nline"])
def test_what_is_no_token_is_refused_and_not_repeated(printed: str) -> None:
    settings = S3Settings(
        "https://s3.example.org",
        swift_url="https://s3.example.org/v1/AUTH_x",
        swift_token_command=("printf", "%s", printed),
    )
    with pytest.raises(AccessError) as found:
        SwiftContainers(settings, "b", "swift:b").lists("b")
    assert found.value.code == "no-credentials"
    assert not printed or printed not in str(found.value)


def test_statuses_are_errors_with_what_they_mean() -> None:
    codes = {status: swift_acl._error_of(status, "x") for status in (401, 403, 404, 412, 429, 503)}
    assert [each.code for each in codes.values()] == [
        *("denied", "denied", "vanished", "refused-by-server", "server-busy", "server-busy"),
    ]
