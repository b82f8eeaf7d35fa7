"""Getting annexed content that is not here, as `git annex get` does; nothing else of the repository is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hibali.errors import HibaliError
from hibali.text import printable
from transfers.datasets.programs import ask_annex, told_by
from transfers.datasets.repository import Repository


def get_content(repository: Repository, keys: Iterable[bytes]) -> dict[bytes, str]:
    """Get the content of keys from wherever git-annex finds it; why not, in words, for those that could not be got.

    Keys, not names: a name may hold what no line can.
    """
    wanted = list(dict.fromkeys(keys))
    try:
        finished, records = ask_annex(
            repository, "get", "--batch-keys", stdin=b"".join(key + b"\n" for key in wanted)
        )
    except HibaliError as problem:
        hint = f" ({problem.hint})" if problem.hint else ""
        return dict.fromkeys(wanted, f"{problem.message}{hint}")
    told = {_key(record): record for record in records}
    missing: dict[bytes, str] = {}
    for key in wanted:
        record = told.get(key)
        if record is None:
            missing[key] = told_by("git annex get", finished)
        elif record.get("success") is not True:
            missing[key] = _why_not(record)
    return missing


def _key(record: dict[str, Any]) -> bytes:
    return str(record.get("key", "")).encode("utf-8", "surrogateescape")


def _why_not(record: dict[str, Any]) -> str:
    """What git-annex said, and where it knows of copies."""
    errors = record.get("error-messages")
    said = [str(record.get("note") or ""), *(map(str, errors) if isinstance(errors, list) else ())]
    wanted = record.get("wanted")
    places = [
        str(place.get("description") or place.get("uuid"))
        for place in (wanted if isinstance(wanted, list) else ())
        if isinstance(place, dict)
    ]
    words = "; ".join(" ".join(part.split()) for part in said if part.strip()) or "git-annex could not get it"
    return printable(words + (f"; copies are in {', '.join(places)}" if places else ""))
