"""Give people access to files, and links to those without an account, as `hibali.shares`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Unpack

from hibali.errors import NotVerifiedError, UsageError
from hibali.locations import Location
from hibali_api.calls import Call, CallOptions, Place, bounded, calling, place_text
from hibali_plugins.share.links import make_link
from hibali_plugins.share.presign import Presigned
from hibali_plugins.share.shares import (
    Outcome,
    Share,
    add_share,
    check_changed,
    other_place,
    people_of,
    plan_share,
    read_shares,
    remove_share,
)
from transfers.model.sharing import Grant, ListedGrant, Permission


class ShareOptions(CallOptions, total=False):
    """The options of `add` and `plan`, as those of `hibali share add`.

    Attributes:
        permission: to write includes to read and to delete.
        until: when it ends, or how long it lasts from now; without it, it has no end. Where the server does not end it itself,
            `hibali share rm --ended` does.
    """

    permission: Literal["read", "write"]
    until: datetime | timedelta


_SHARE = frozenset(ShareOptions.__annotations__) - frozenset(CallOptions.__annotations__)


def plan(place: Place, who: str, **options: Unpack[ShareOptions]) -> Outcome:
    """Return what `add` would change: files, bytes, and folders above that this person cannot enter."""
    with calling("plan", options, _SHARE) as call:
        return plan_share(call.location(place), _grant(who, call.given), call.on_event)


def add(place: Place, who: str, *, prove_as: Place | None = None, **options: Unpack[ShareOptions]) -> Outcome:
    """Let a person or group read, or also write, a file or a folder with all that it has now and later.

    Args:
        place: the file or folder.
        who: as its site names people: an account, `group:NAME`, an ARN, a UUID (docs/sharing.md).
        prove_as: a site that reaches the same files with the login of this person, or the place there: a file is read.
        options: see `ShareOptions`.

    Raises:
        NotVerifiedError: the person could not read it. The share stays, and has no effect.
        IncompleteError: files of others could not be shared; the rest is.
        RefusedError: the site cannot share it.
    """
    with calling("add", options, _SHARE) as call:
        location, grant = call.location(place), _grant(who, call.given)
        done = add_share(location, grant, _other(prove_as, location, call), call.on_event)
    return _checked(location, done, "cannot read it: the share has no effect")


def remove(
    place: Place, who: str, *, prove_as: Place | None = None, **options: Unpack[CallOptions]
) -> Outcome:
    """Take away what `add` gave; what others gave stays.

    Args:
        place: as it was given to `add`.
        who: as it was given to `add`.
        prove_as: as for `add`; reading must fail then.
        options: see `CallOptions`.

    Raises:
        NotVerifiedError: the person can still read it, because of something else.
        IncompleteError: files of others could not be changed.
    """
    with calling("remove", options) as call:
        location = call.location(place)
        done = remove_share(location, who, _other(prove_as, location, call), call.on_event)
    return _checked(location, done, "can still read it")


def every(*, removed: bool = False) -> list[Share]:
    """Return the shares that this machine gave and did not remove, by place; with `removed` also the others."""
    return list(read_shares(removed=removed))


def people(place: Place, **options: Unpack[CallOptions]) -> list[ListedGrant]:
    """Return who has access to a place, as its site says."""
    with calling("people", options) as call:
        return people_of(call.location(place), call.on_event)


def link(file: Place, duration: timedelta = timedelta(days=7), **options: Unpack[CallOptions]) -> Presigned:
    """Return a link to a file in a bucket: its `url`, when it `ends`, and whether it is `proven` by reading with it alone.

    Args:
        file: a file in a bucket.
        duration: how long the link is valid, at most 7 days. It cannot be withdrawn.
        options: see `CallOptions`.

    Raises:
        RefusedError: files of this site have no links.
        UsageError: the duration is too long.
    """
    with calling("link", options) as call:
        return make_link(
            call.location(file), round(bounded(duration, "duration").total_seconds()), call.on_event
        )


def _grant(who: str, given: Mapping[str, Any]) -> Grant:
    until = given.get("until")
    if isinstance(until, timedelta):
        until = datetime.now(UTC) + bounded(until, "until")
    if until is not None:
        until = until.astimezone(UTC).replace(microsecond=0)
        if until <= datetime.now(UTC):
            raise UsageError("usage", f"{until.isoformat()} is over", subject="until")
    try:
        permission = Permission(given.get("permission", "read"))
    except ValueError as problem:
        raise UsageError("usage", str(problem), subject="permission") from None
    return Grant(who, permission, until)


def _other(prove_as: Place | None, location: Location, call: Call) -> Location | None:
    return None if prove_as is None else other_place(place_text(prove_as), location, call.settings)


def _checked(location: Location, done: Outcome, denial: str) -> Outcome:
    """Return a change that is complete and not disproven. Raise `IncompleteError` or `NotVerifiedError`."""
    check_changed(location, done.reach)
    if done.proven is False:
        raise NotVerifiedError(
            "share-not-proven",
            f"{done.grant.who} {denial}",
            subject=location.text,
            hint="Ask the site who has access: hibali share list PLACE",
        )
    return done
