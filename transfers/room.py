"""Room at a place: what the filesystem has, and what quotas leave of it."""

from __future__ import annotations

from typing import Any

from transfers.store import Space


def space_in(header: dict[str, Any]) -> Space:
    """An agent's answer to `space`; raises ValueError, KeyError or TypeError where it makes no sense."""
    return Space(_amount(header["bytes"]), _amount(header["inodes"]))


def within_quotas(space: Space, rooms: list[Any]) -> Space:
    """The least of the space and what each quota leaves; raises as `space_in`."""
    free_bytes, free_inodes, by = space.free_bytes, space.free_inodes, dict(space.by)
    for who, left_bytes, left_inodes in rooms:
        space_left, names_left = _amount(left_bytes), _amount(left_inodes)
        if space_left is not None and (free_bytes is None or space_left < free_bytes):
            free_bytes, by["bytes"] = space_left, str(who)
        if names_left is not None and (free_inodes is None or names_left < free_inodes):
            free_inodes, by["inodes"] = names_left, str(who)
    return Space(free_bytes, free_inodes, by)


def _amount(value: Any) -> int | None:
    if value is None or (isinstance(value, int) and value >= 0):
        return value
    raise ValueError
