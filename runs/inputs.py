"""Where the files of an invocation lie, and what they are, before anything is asked of the run's site."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hibali.errors import NotFoundError
from hibali.locations import Location, read_location
from hibali.settings import Settings
from hibali.sites import Site
from registry.invocation import Invocation
from runs.identity import Identity, identify_elsewhere, identify_local
from runs.prepare import Input, list_inputs
from runs.reference import Reference, read_reference
from runs.taking import Taken, find_home, take_output
from transfers.datasets.contents import bring_here
from transfers.places import open_store

_MOST_NAMED = 100


@dataclass(frozen=True, slots=True)
class Located:
    """One input and its place; `identity` is None for one that is at the run's site, which is asked later.

    `taken` is what it was of another run. While there is no site, `reference` is what is to be taken of one, `several` files perhaps.
    """

    input: Input
    place: Location
    identity: Identity | None
    taken: Taken | None = None
    reference: Reference | None = None
    several: bool = False


def takes_one(each: Input) -> bool:
    """No input stands for several files."""
    del each
    return False


def locate_inputs(
    invocation: Invocation, settings: Settings, site: Site | None, *, identify: bool = True
) -> list[Located]:
    """All inputs, located, as a run at `site` sees them; without `identify` nothing is read or hashed.

    With no site yet all are looked at where they lie; `seen_from` makes them those of one. An output of another run may be several
    inputs.

    Raises `NotFoundError` with all that is missing at once, `UsageError` for what cannot be an input, `IncompleteError` for
    annexed content that cannot be got, and what `runs.taking.take_output` raises.
    """
    lists = frozenset(each for each, answer in invocation.file_inputs() if not isinstance(answer, str))
    files = list_inputs(invocation)
    return locate_files(files, settings, site, identify=identify, several=lambda each: each.id in lists)


def locate_files(
    files: Sequence[Input],
    settings: Settings,
    site: Site | None,
    *,
    identify: bool = True,
    known: Mapping[str, str] | None = None,
    several: Callable[[Input], bool] = takes_one,
) -> list[Located]:
    """The same of files that several invocations may name; `known` has for some texts the location that was meant.

    `several` says which of the inputs may stand for many files.
    """
    found: list[Located] = []
    missing: list[NotFoundError] = []
    for each in files:
        reference = read_reference(each.text, settings.sites)
        if reference is not None:
            if site is None:
                home, text = find_home(reference, settings), reference.text
                found.append(Located(each, home, Identity(text), None, reference, several(each)))
            else:
                found += _take(each, reference, settings, site, several=several(each), look=identify)
            continue
        recorded = (known or {}).get(each.text)
        place = read_location(recorded or each.text, settings, literal=recorded is not None)
        named = replace(each, name=place.name.decode("utf-8", "surrogateescape") or "input")
        if place.site == site and not place.typed_local:
            found.append(Located(named, place, None))
            continue
        try:
            found.append(_identify(named, place) if identify else Located(named, place, Identity("")))
        except NotFoundError as problem:
            missing.append(problem)
    if missing:
        raise _all_of(missing)
    return _numbered(found)


def seen_from(located: Sequence[Located], site: Site, settings: Settings) -> list[Located]:
    """Inputs that were located without a site, as a run there sees them: its own need not come.

    Raises what `take_output` does.
    """
    found: list[Located] = []
    for each in located:
        if each.reference is not None:
            found += _take(each.input, each.reference, settings, site, several=each.several, look=True)
        elif each.place.site == site and not each.place.typed_local:
            found.append(replace(each, identity=None))
        else:
            found.append(each)
    return _numbered(found)


def _take(
    each: Input, reference: Reference, settings: Settings, site: Site, *, several: bool, look: bool
) -> list[Located]:
    taken = take_output(each, reference, settings, site, several=several, look=look)
    return [Located(one.input, one.place, one.identity, one) for one in taken]


def _numbered(found: Sequence[Located]) -> list[Located]:
    """In their order: some stand for several."""
    return [replace(each, input=replace(each.input, number=n)) for n, each in enumerate(found)]


def _identify(each: Input, place: Location) -> Located:
    """A local path stands for what it leads to: a link is not staged as a link, and what git-annex keeps elsewhere is got."""
    if place.typed_local:
        path = Path(os.fsdecode(place.raw))
        bring_here(place.raw)
        identity = identify_local(path)
        real = os.fsencode(path.resolve()).decode("utf-8", "surrogateescape")
        return Located(each, replace(place, path=real, slash=False), identity)
    store = open_store(place)
    try:
        return Located(each, place, identify_elsewhere(place, store.stat()))
    finally:
        store.close()


def _all_of(missing: Sequence[NotFoundError]) -> NotFoundError:
    first = missing[0]
    if len(missing) == 1:
        return first
    lines = [f"{problem.about}: {problem.message}" for problem in missing[:_MOST_NAMED]]
    if len(missing) > len(lines):
        lines.append(f"and {len(missing) - len(lines)} more")
    return NotFoundError(
        first.code, "\n".join([f"{len(missing)} inputs are missing", *lines]), hint=first.hint
    )
