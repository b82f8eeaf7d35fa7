"""Read the profiles of computing centres, and fill in what they ask of the user."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hibali.errors import NotFoundError, UsageError
from hibali.text import did_you_mean, printable

_FOLDER = Path(__file__).parent / "profiles"
# One word, which ends no path, argument or list, wherever a profile has its place.
_VALUE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,99}")
_PLACE = re.compile(r"\{([a-z]+)\}")
_OPTIONS = {"user": "--user NAME", "account": "--account NAME"}


def names() -> list[str]:
    """Return the names of the centres, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def read(
    name: str, given: Mapping[str, str], ask: Callable[[str], str] | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the profile of a centre with the user's values in place of `{NAME}`, and these values.

    Args:
        name: The centre.
        given: Values by name.
        ask: Returns the answer to a question, for each value that is not given; None where nobody can be asked.

    Raises:
        NotFoundError: No profile has this name.
        UsageError: A value is missing or not valid, or the profile does not ask for it.
    """
    known = names()
    if name not in known:
        raise NotFoundError(
            "unknown-centre",
            "hibali has no profile of this centre" if name else "the name of the centre is missing",
            subject=printable(f"centre:{name}"),
            hint=f"{did_you_mean(name, known)}Known centres: {', '.join(known)}.",
        )
    document = tomllib.loads((_FOLDER / f"{name}.toml").read_text("utf-8"))
    wanted: dict[str, str] = document.pop("ask")
    for unknown in sorted(given.keys() - wanted.keys()):
        raise _bad_value(name, unknown, f"the profile does not ask for this, only for {', '.join(wanted)}")
    values = {}
    for each, meaning in wanted.items():
        if each not in given and ask is None:
            raise _bad_value(name, each, f"the profile needs {meaning}")
        value = given[each] if each in given or ask is None else ask(f"{meaning} [{each}]: ")
        if not _VALUE.fullmatch(value):
            raise _bad_value(
                name, each, f"{printable(value)!r} is not a word of letters, digits and _ . @ + -"
            )
        values[each] = value
    return _filled(document, values), values


def _bad_value(centre: str, name: str, message: str) -> UsageError:
    option = _OPTIONS.get(name, f"--value {printable(name)}=VALUE")
    subject = printable(f"centre:{centre}, {name}")
    return UsageError("profile-value", message, subject=subject, hint=f"Its option is {option}")


def _filled(value: Any, values: Mapping[str, str]) -> Any:
    """Return the document with each place filled; only strings of the parsed document have places."""
    if isinstance(value, dict):
        return {key: _filled(each, values) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, values) for each in value]
    return _PLACE.sub(lambda found: values[found[1]], value) if isinstance(value, str) else value
