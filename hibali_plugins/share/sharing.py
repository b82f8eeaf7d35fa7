"""Share places with people and files by links, end shares, and show who has access."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import click

from hibali.amounts import format_size
from hibali.errors import Exit
from hibali.locations import Location, read_location
from hibali.plugins import if_offered
from hibali.text import counted, printable
from hibali_cli.failure import Failures
from hibali_cli.fields import write_list
from hibali_cli.options import Common
from hibali_cli.progress import listening
from hibali_plugins.share.links import make_link, read_links
from hibali_plugins.share.shares import (
    Outcome,
    Share,
    add_share,
    check_changed,
    ended_shares,
    other_place,
    people_of,
    plan_share,
    read_shares,
    remove_share,
)
from transfers.model.sharing import Grant, Permission, Reach

_TIME = "%Y-%m-%d %H:%M UTC"
_STATES = {"removed": "removed", "ended": "over, but not removed"}


def add(
    common: Common,
    place: str,
    *,
    who: str | None,
    permission: str,
    until: datetime | None,
    other: str | None,
    dry_run: bool,
) -> int | None:
    """Show what a share concerns, give it, and prove it; the exit code is 11 if that failed.

    `who` and `other` are as typed.
    """
    if who is None:
        raise click.UsageError("Missing option '--with'.")
    settings = common.settings()
    location = read_location(place, settings)
    as_other = None if other is None else other_place(other, location, settings)
    grant = Grant(who, Permission(permission), until)
    with listening(common, f"share add {location.text}") as on_event:
        planned = plan_share(
            location, grant, on_event
        )  # also finds what is wrong before anything is recorded
    _explain(common, location, planned)
    if dry_run:
        _report(common, location, planned, "planned")
        return None
    with listening(common, f"share add {location.text}") as on_event:
        done = add_share(location, grant, as_other, on_event)
    _report(common, location, done, "added")
    if until is not None and not common.json:
        scheduled = if_offered("schedule", "hibali schedule add shares --every 1h -- share rm --ended")
        common.output.info(f"To end it in time: {scheduled or 'hibali share rm --ended'}")
    return _exit_of(common, location, done, "cannot read it: the share has no effect")


def remove(
    common: Common, place: str | None, *, who: str | None, other: str | None, ended: bool
) -> int | None:
    """Take away a share, and prove it; the exit code is 11 if the other person can still read.

    With `ended`, remove all shares whose time is over.
    """
    if (ended and (place or who)) or not (ended or (place and who)):
        raise click.UsageError("Give PLACE and --with, or only --ended.")
    if place is None or who is None:
        return _remove_ended(common)
    settings = common.settings()
    location = read_location(place, settings)
    as_other = None if other is None else other_place(other, location, settings)
    with listening(common, f"share rm {location.text}") as on_event:
        done = remove_share(location, who, as_other, on_event)
    _report(common, location, done, "removed")
    return _exit_of(common, location, done, "can still read it: look at hibali share list PLACE")


def _remove_ended(common: Common) -> int | None:
    """Remove all shares whose time is over; one that fails does not stop the others."""
    settings = common.settings()
    failures = Failures(json=common.json)
    ended = ended_shares()
    for share in ended:
        with failures.collect():
            location = read_location(share.place, settings, literal=True)
            with listening(common, f"share rm {location.text}") as on_event:
                done = remove_share(location, share.grant.who, None, on_event)
            _report(common, location, done, "removed")
            _check_changed(common, location, done.reach)
    failures.end()
    if not ended:
        common.output.info("No share has ended.")
    return None


def print_links(common: Common, places: Sequence[str], *, seconds: float) -> int | None:
    """Print a link to each file; the exit code is 11 if one is not proven."""
    settings = common.settings()
    proven = True
    locations = [read_location(each, settings) for each in places]
    for location in locations:
        with listening(common, f"share link {location.text}") as on_event:
            link = make_link(location, round(seconds), on_event)
        proven = proven and link.proven
        if common.json:
            record = {"place": location.text, "url": link.url, "ends": link.ends.isoformat()}
            common.output.record("link", {**record, "proven": link.proven})
            continue
        common.output.line(link.url)
        common.output.info(f"{location.text}: valid until {_time_text(link.ends)}")
        if not link.proven:
            common.output.warn(f"{location.text}: not proven: the server did not give the file for this link")
    return None if proven else int(Exit.NOT_VERIFIED)


def list_shares(common: Common, place: str | None, *, ended: bool) -> int | None:
    """Show who has access to a place, or what this machine gave; with `ended` also what has no effect any more."""
    return _list_all(common, ended=ended) if place is None else _list_people(common, place)


def _list_all(common: Common, *, ended: bool) -> int | None:
    """Show the shares and links that this machine gave and that are in effect, or all."""
    shares, links = list(read_shares(removed=ended)), list(read_links(ended=ended))
    if common.json:
        for share in shares:
            record = {"place": share.place, **share.grant.to_record()}
            common.output.record("shared", {**record, "state": _state_of(share), "proven": share.proven})
        for link in links:
            record = {"place": link.place, "url": None, "ends": link.ends.isoformat()}
            common.output.record("link", {**record, "proven": link.proven})
        common.output.record("end", {"count": len(shares) + len(links), "exit": 0})
        return None
    rows = [
        (
            share.place,
            share.grant.who,
            _STATES.get(_state_of(share), str(share.grant.permission)),
            _time_text(share.grant.until),
            _proven_text(share.proven),
        )
        for share in shares
    ]
    rows += [
        (link.place, "who has the link", "read", _time_text(link.ends), _proven_text(link.proven))
        for link in links
    ]
    common.output.table(["place", "who", "permission", "until", "proven"], rows)
    if not rows:
        common.output.info("Nothing is shared. To share files: hibali share add SITE:PATH --with WHO")
    if any(share.ended and not share.removed for share in shares):
        common.output.info("To remove what has ended: hibali share rm --ended")
    return None


def _state_of(share: Share) -> str:
    if share.removed:
        return "removed"
    return "ended" if share.ended else "added"


def _proven_text(proven: bool | None) -> str:  # noqa: FBT001  # of a list of values
    return {None: "not tried", True: "yes", False: "no"}[proven]


def _list_people(common: Common, place: str) -> int | None:
    """Show who has access to a place, according to its site."""
    location = read_location(place, common.settings())
    with listening(common, f"share list {location.text}") as on_event:
        found = people_of(location, on_event)
    records = ({"place": location.text, **each.grant.to_record(), "ours": each.ours} for each in found)
    if write_list(common, "access", records):
        return None
    rows = [
        (each.grant.who, str(each.grant.permission), _time_text(each.grant.until), _ours_text(each.ours))
        for each in found
    ]
    common.output.table(["who", "permission", "until", "given by"], rows)
    return None


def _time_text(moment: datetime | None) -> str:
    return "-" if moment is None else moment.astimezone(UTC).strftime(_TIME)


def _ours_text(ours: bool | None) -> str:  # noqa: FBT001  # of a list of values
    return {None: "-", True: "hibali", False: "others"}[ours]


def _explain(common: Common, location: Location, planned: Outcome) -> None:
    """Say who can do what then, with numbers, and what prevents it; nothing to a script."""
    if common.json:
        return
    reach, grant = planned.reach, planned.grant
    does = "read, write and delete" if grant.permission is Permission.WRITE else "read"
    amount = f"{counted(reach.files, 'file')}, {format_size(reach.size)}"
    end = "without an end" if grant.until is None else f"until {_time_text(grant.until)}"
    common.output.info(f"{location.text}: {grant.who} can {does} {amount}, and what is added later, {end}.")
    for folder in reach.blocked:
        common.output.warn(f"{grant.who} cannot enter {printable(folder)}, so the share has no effect")


def _report(common: Common, location: Location, done: Outcome, state: str) -> None:
    """Print the outcome as a line of JSON, or its figures."""
    reach, grant = done.reach, done.grant
    if common.json:
        counts = {
            "files": reach.files,
            "bytes": reach.size,
            "changed": reach.changed,
            "failed": reach.failures,
        }
        blocked = [printable(folder) for folder in reach.blocked]
        common.output.record(
            "share",
            {
                "place": location.text,
                **grant.to_record(),
                **counts,
                "blocked": blocked,
                "state": state,
                "proven": done.proven,
            },
        )
    elif state != "planned":
        common.output.info(f"{location.text}: {grant.who}: {state} ({counted(reach.changed, 'change')})")


def _exit_of(common: Common, location: Location, done: Outcome, denial: str) -> int | None:
    """Say whether the change was proven; return the exit code."""
    _check_changed(common, location, done.reach)
    if done.proven is None:
        if not common.json:
            common.output.info("Not proven: to try it as the other person, use --as SITE.")
        return None
    if not done.proven:
        common.output.warn(f"{location.text}: not proven: {done.grant.who} {denial}")
        return int(Exit.NOT_VERIFIED)
    if not common.json:
        common.output.info(f"Proven by reading as {done.grant.who}.")
    return None


def _check_changed(common: Common, location: Location, reach: Reach) -> None:
    """Name what could not be changed, and raise `IncompleteError`."""
    for path, code, message in reach.problems:
        common.output.warn(f"{printable(path) or location.text}: {message} ({code})")
    check_changed(location, reach)
