"""Convert entries, actions and events to JSON fields (docs/json.md)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from hibali.events import Event
from hibali.text import path_fields

if TYPE_CHECKING:
    from transfers.model.entry import Entry
    from transfers.planning.actions import Action

_NANOSECONDS = 1_000_000_000
_FIELD_NAMES = {"kind": "type", "subject": "about"}  # of events: as documented in docs/json.md


def moment(nanoseconds: int) -> str | None:
    """Format nanoseconds since the epoch as UTC in RFC 3339; None for 0, which means unknown.

    Also None outside the years 1 to 9999, which RFC 3339 cannot write.
    """
    if not nanoseconds:
        return None
    seconds, rest = divmod(nanoseconds, _NANOSECONDS)
    try:
        whole = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def entry_fields(entry: Entry) -> dict[str, Any]:
    """Return the fields of a line of kind `entry`; `link` only for symlinks."""
    fields: dict[str, Any] = {
        **path_fields(entry.path),
        "type": str(entry.kind),
        "size": entry.size,
        "mtime": moment(entry.mtime_ns),
        "mode": _octal(entry.mode),
        "etag": entry.etag,
        "digest": entry.digest,
        "offline": entry.offline,
    }
    return fields | (path_fields(entry.link, "link") if entry.link else {})


def action_fields(action: Action) -> dict[str, Any]:
    """Return the fields of a line of kind `action`: what happens to a name at the target, and why."""
    fields: dict[str, Any] = {
        "action": str(action.verb),
        **path_fields(action.entry.path),
        "type": str(action.entry.kind),
        "size": action.entry.size,
        "because": action.because,
    }
    others = {"same_as": action.entry.same_as, "renamed_from": action.entry.renamed_from}
    for name, path in others.items():
        fields |= path_fields(path, name) if path else {}
    return fields


def event_fields(event: Event) -> dict[str, Any]:
    """Return the fields of an event's line, whose kind is the lower-case name of the event."""
    fields: dict[str, Any] = {}
    for name in event.__match_args__:
        value = getattr(event, name)
        if isinstance(value, bytes):
            if value or name != "renamed_from":
                fields.update(path_fields(value, name))
        elif name == "mtime_ns":
            fields["mtime"] = moment(value)
        elif name == "mode":
            fields["mode"] = _octal(value)
        else:
            fields[_FIELD_NAMES.get(name, name)] = value
    return fields


def _octal(mode: int) -> str | None:
    """Format permission bits as for `chmod`; None where the store has none."""
    return None if mode < 0 else f"{mode:04o}"
