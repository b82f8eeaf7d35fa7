"""Setting permissions of what stands behind an SFTP server, only where it still is what was listed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from transfers import sftp_wire as wire
from transfers.entry import Kind
from transfers.sftp_beneath import Beneath
from transfers.sftp_channel import StatusError
from transfers.sftp_client import Client, is_unchanged, kind_of, problem_of
from transfers.sftp_wire import Attributes
from transfers.store import Adjustment, Problem


def adjust_all(
    client: Client, beneath: Beneath, batch: Sequence[Adjustment]
) -> Iterator[tuple[Adjustment, Problem | None]]:
    """Look at all of them, then set them in the order given: what a folder holds comes before the folder."""
    wrong = beneath.parents([one.entry.path for one in batch])
    looks = [
        None if one.entry.path in wrong else client.ask_stat(beneath.full(one.entry.path)) for one in batch
    ]
    problems = [wrong.get(one.entry.path) for one in batch]
    asked = []
    for position, (one, look) in enumerate(zip(batch, looks, strict=True)):
        if look is None:
            continue
        try:
            mode = _mode_to_set(one, client.attributes_of(look))
        except StatusError as problem:
            gone = problem.code == wire.NO_SUCH_FILE
            problems[position] = (
                Problem("vanished", "there is nothing there") if gone else problem_of(problem)
            )
        except ValueError as problem:
            problems[position] = Problem("target-changed", str(problem))
        else:
            if mode is not None:
                asked.append((position, client.ask_set_mode(beneath.full(one.entry.path), mode)))
    for position, pending in asked:
        try:
            pending.wait()
        except StatusError as problem:
            problems[position] = problem_of(problem)
    yield from zip(batch, problems, strict=True)


def _mode_to_set(one: Adjustment, found: Attributes) -> int | None:
    """None where nothing has to be set; raises ValueError where something else stands there than was listed."""
    folder = one.entry.kind is Kind.FOLDER
    if kind_of(found) is not one.entry.kind or not (folder or is_unchanged(one.entry, found)):
        raise ValueError("it changed after it was listed and was left alone")
    mode = found.mode or 0
    if one.permissions is None or mode & 0o777 == one.permissions:
        return None
    # What a folder has of its own (setgid, sticky) is the site's; a file loses what must never be kept.
    return (mode & 0o7000 if folder else 0) | one.permissions
