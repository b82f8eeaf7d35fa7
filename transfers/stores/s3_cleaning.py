"""Uploads that were begun and never completed: found at the server, and ended."""

from __future__ import annotations

from collections.abc import Iterator

from hibali.errors import HibaliError, IncompleteError, NotFoundError
from hibali.ledger import now as moment
from transfers.clean import Fate, Leftover
from transfers.stores.s3_multipart import Pending, abort, pending_uploads
from transfers.stores.s3_records import time_of
from transfers.stores.s3_requests import Requests
from transfers.stores.s3_uploads import Begun, begun_at, forget

_ELSEWHERE_SECONDS = 86400.0  # one of another host of ours may be under way; nobody is at it that long after
_SLACK_SECONDS = 60.0  # what was begun while the server was asked is not in its answer


def clean(
    requests: Requests, site: str, prefix: bytes, *, older_than: float, everybody: bool, dry: bool
) -> Iterator[Leftover]:
    """See transfers.clean.clean_site; for one bucket and what lies below `prefix`."""
    ours = {
        begun.identifier: begun
        for begun in begun_at(site)
        if begun.bucket == requests.bucket and begun.key.startswith(prefix)
    }
    clock = requests.ask("HEAD", accept=range(400, 500)).seconds
    try:
        pending = list(pending_uploads(requests, prefix))
    except (IncompleteError, NotFoundError):
        # This server cannot list them: what is known here is all there is to go by.
        pending = [Pending(begun.key, begun.identifier, begun.at) for begun in ours.values()]
    ended = {identifier for identifier, begun in ours.items() if _is_old(begun.at, clock)}
    ended -= {upload.identifier for upload in pending}
    try:
        for upload in pending:
            mine = ours.get(upload.identifier)
            age = _age(upload.begun or (mine.at if mine else ""), clock)
            because = _stays(mine, age, older_than, everybody=everybody)
            fate = Fate.KEPT if because else Fate.PLANNED
            if fate is Fate.PLANNED and not dry:
                because = _abort(requests, upload)
                fate = Fate.FAILED if because else Fate.ENDED
                ended |= set() if because else {upload.identifier}
            yield Leftover(requests.bucket, upload.key, upload.begun, age, mine is not None, fate, because)
    finally:
        if not dry:
            forget(site, ended)


def _stays(mine: Begun | None, age: float | None, older_than: float, *, everybody: bool) -> str:
    if mine is not None and not mine.left and not mine.elsewhere:
        return "under way"
    if mine is None and not everybody:
        return "begun by others"
    if age is None or age < older_than:
        return "too young"
    if mine is not None and mine.elsewhere and age < _ELSEWHERE_SECONDS:
        return "begun on another host, too young"
    return ""


def _abort(requests: Requests, upload: Pending) -> str:
    try:
        abort(requests, upload.key, upload.identifier)
    except IncompleteError as problem:
        return problem.message
    except HibaliError as problem:
        if problem.code != "denied":
            raise
        return problem.message
    return ""


def _age(begun: str, clock: float | None) -> float | None:
    since = time_of(begun) / 1e9
    return max(0.0, (clock or time_of(moment()) / 1e9) - since) if since else None


def _is_old(begun: str, clock: float | None) -> bool:
    age = _age(begun, clock)
    return age is None or age > _SLACK_SECONDS
