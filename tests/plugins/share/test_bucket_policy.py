"""Test the statements in policies of buckets: ours are exact, those of others stay."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hibali.errors import RefusedError
from hibali_plugins.share.bucket_policy import (
    BucketSharing,
    Policy,
    people_in,
    statements_of,
    with_grant,
    without_person,
)
from transfers.model.sharing import Grant, ListedGrant, Permission

ANNA = "arn:aws:iam::123456789012:user/anna"
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="*?$"), min_size=1, max_size=12)
FOREIGN = st.dictionaries(
    st.sampled_from(["Sid", "Effect", "Principal", "Action", "Resource", "NotResource", "Condition"]),
    st.text(max_size=8) | st.lists(st.text(max_size=8), max_size=2) | st.none() | st.integers(),
    max_size=5,
)
POLICIES = st.builds(
    lambda statements: {"Version": "2012-10-17", "Statement": statements} if statements else {},
    st.lists(FOREIGN, max_size=3),
)
GRANTS = st.builds(
    Grant,
    st.sampled_from([ANNA, "everyone", "bob"]),
    st.sampled_from(list(Permission)),
    st.none() | st.just(datetime(2027, 1, 31, 12, tzinfo=UTC)),
)


@given(POLICIES, TEXT, GRANTS, st.booleans())
def test_statements_of_others_stay_and_ours_can_be_removed(
    policy: Policy, key: str, grant: Grant, folder: bool
) -> None:
    before = statements_of(policy)
    shared = with_grant(policy, "data", key, grant, folder=folder)
    assert statements_of(shared)[: len(before)] == before
    again = with_grant(shared, "data", key, grant, folder=folder)
    assert again == shared
    other = with_grant(shared, "data", key + "x", grant, folder=folder)
    assert statements_of(without_person(other, "data", key + "x", grant.who)) == statements_of(shared)
    assert statements_of(without_person(shared, "data", key, grant.who)) == before
    assert statements_of(policy) == before, "the given policy was changed"


@given(POLICIES, TEXT, GRANTS, st.booleans())
def test_a_policy_tells_who_has_access(policy: Policy, key: str, grant: Grant, folder: bool) -> None:
    shared = with_grant(policy, "data", key, grant, folder=folder)
    assert ListedGrant(grant, ours=True) in people_in(shared, "data", key)
    people_in(policy, "data", key)  # whatever it has


def test_names_of_statements_have_letters_and_digits_only() -> None:
    shared = with_grant({}, "data", "a/b", Grant(ANNA, Permission.WRITE), folder=True)
    assert [re.fullmatch(r"[A-Za-z0-9]+", each["Sid"]) is not None for each in shared["Statement"]] == [
        True
    ] * 3
    assert shared["Statement"][0]["Resource"] == ["arn:aws:s3:::data/a/b/*"]
    assert shared["Statement"][1]["Condition"] == {"StringLike": {"s3:prefix": ["a/b/", "a/b/*"]}}


@pytest.mark.parametrize("key", [b"a*", b"a?b", b"${aws:username}", b"\xff", b"a\nb"])
def test_names_that_mean_something_else_in_policies_are_refused(key: bytes) -> None:
    class NoRequests:
        bucket = "data"
        subject = "data"

        def request(self, *words: Any, **options: Any) -> Any:
            raise AssertionError(words, options)

    sharing = BucketSharing(NoRequests(), key)  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match="mean something else"):
        sharing._text()
