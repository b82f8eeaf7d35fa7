"""Locate the inputs of a run, including outputs of other runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hibali.config.model import Site
from hibali.config.settings import Settings
from hibali.errors import NotFoundError, UsageError
from hibali.locations import Location, read_location
from hibali.text import as_text, counted, printable
from registry.invocation import Invocation
from runs.collect import work_of
from runs.dependencies import require_submitted, require_success
from runs.identity import (
    WHOLE,
    Identity,
    LocalContent,
    Part,
    absent_parts,
    identify_elsewhere,
    identify_local,
    select_parts,
    split_part,
    stat_local,
)
from runs.model import Input, Run, State
from runs.outputs import (
    OutputIdentity,
    Reference,
    content_at,
    find_output,
    inspect_outputs,
    matched_paths,
    read_reference,
    referenced_runs,
    require_whole,
    size_at,
)
from runs.script import Dependencies, Dependency
from runs.store import RunStore
from transfers.single_files import follow_links
from transfers.stores.open_store import open_store
from transfers.stores.open_views import fetch_content

_MOST_NAMED = 100


def list_inputs(invocation: Invocation) -> list[Input]:
    """Return the files that an invocation names, in its order."""
    found: list[Input] = []
    for identifier, value in invocation.file_inputs():
        for text in [value] if isinstance(value, str) else value:
            found.append(Input(identifier, len(found), text))
    return found


@dataclass(frozen=True, slots=True)
class RunInput:
    """A file or folder that is an output of a run and an input of another; `path` is relative to the work folder of `run`.

    Of a sweep `run` is the task, as a run by itself.
    """

    input: Input
    place: Location
    identity: Identity
    run: Run
    path: str


def list_references(files: Iterable[Input], settings: Settings) -> list[Reference]:
    """Return the references to outputs among files; raises `UsageError` for malformed ones."""
    found = (read_reference(each.text, settings.sites) for each in files)
    return [each for each in found if each is not None]


def find_work_folder(reference: Reference, settings: Settings) -> Location:
    """Return the work folder of the referenced run without contacting its site.

    Raises `NotFoundError` and `UsageError` for an output that the run never declared.
    """
    run = RunStore().load(reference.run)
    for part in referenced_runs(run, reference):
        find_output(part, reference)
    return work_of(run, settings.site(run.site))


def resolve_output(
    each: Input, reference: Reference, settings: Settings, site: Site, *, several: bool, query_site: bool
) -> list[RunInput]:
    """Resolve the reference in an input: one file or folder, or with `several` all files of a pattern, of each task of a sweep.

    At the run's own site the output is used in place, even before it exists; from another site it is hashed, and staged by its content.
    Without `query_site` no site is contacted. Raises `NotFoundError`, `UsageError`, `IncompleteError` for outputs that are missing or no
    regular files, and what `require_success` raises.
    """
    run = RunStore().load(reference.run)
    found = [
        run_input
        for part in referenced_runs(run, reference)
        for run_input in _resolve_output_of(
            each, replace(reference, task=part.task), part, settings, site, query_site=query_site
        )
    ]
    if len(found) > 1 and not several:
        one = replace(reference, task=found[0].run.task, below="").text
        raise UsageError(
            "several-files",
            f"the output has {len(found)} files, but this input accepts only one",
            subject=f"{each.id}: {printable(reference.text)}".removeprefix(": "),
            hint=f"Name one task of the sweep: {one}" if run.sweep is not None and not reference.task else "",
        )
    return found


def _resolve_output_of(
    each: Input, reference: Reference, run: Run, settings: Settings, site: Site, *, query_site: bool
) -> list[RunInput]:
    """Resolve a reference for one run, or for one task as a run by itself."""
    output = find_output(run, reference)
    require_submitted(run)
    home = settings.site(run.site)
    here = home.name == site.name
    if not query_site or (here and not output.is_pattern):
        return [_run_input(each, reference, run, home, output.path, here=here)]
    require_success(run)
    existing = inspect_outputs(run, home, [output], hashed=not here)
    require_whole(existing, reference.text)
    found = []
    for path in matched_paths(output, existing):
        text = as_text(path) or "."
        identity = None
        if not here:
            content = content_at(path, existing)
            identity = Identity(reference.text, content.digest, content.files, size_at(path, existing))
        run_input = _run_input(each, reference, run, home, text, here=here)
        found.append(run_input if identity is None else replace(run_input, identity=identity))
    return [_with_own_identity(run_input, reference) for run_input in found] if output.is_pattern else found


def _run_input(each: Input, reference: Reference, run: Run, home: Site, path: str, *, here: bool) -> RunInput:
    place = work_of(run, home)
    for part in path.split("/") if path != "." else ():
        place = place.child(part.encode("utf-8", "surrogateescape"))
    named = replace(each, name=as_text(place.name))
    if here:
        named = replace(named, in_place=True, source=place.path)
    return RunInput(named, place, Identity(reference.text), run, path)


def _with_own_identity(run_input: RunInput, reference: Reference) -> RunInput:
    """Give each file of a pattern an identity of its own."""
    text = OutputIdentity(reference, printable(run_input.path)).text
    return replace(run_input, identity=replace(run_input.identity, text=text))


def dependencies_of(
    run_inputs: Iterable[RunInput], after: Iterable[Run], site: Site, *, hold: bool
) -> Dependencies:
    """Return the runs at this site that a job must check: those whose outputs it reads, and those that come first.

    The job ids are those of the ledger; they are queried again before the submission.
    """
    runs: dict[str, Run] = {}
    paths: dict[str, list[str]] = {}
    for each in run_inputs:
        if each.run.site == site.name:
            runs[each.run.reference] = each.run
            paths.setdefault(each.run.reference, []).append(each.path)
    for run in after:
        if run.site == site.name and not (run.sweep is not None and run.state is State.SUCCEEDED):
            runs[run.reference] = run
    needs = (
        Dependency(
            run.id,
            as_text(run.folder),
            tuple(paths.get(run.reference, ())),
            run.task,
            all_tasks=run.sweep is not None,
        )
        for run in runs.values()
    )
    jobs = (run.job for run in runs.values() if run.job and not run.state.ended)
    return Dependencies(tuple(needs), tuple(dict.fromkeys(jobs)), hold)


@dataclass(frozen=True, slots=True)
class Located:
    """One input and its location; `identity` is None for one at the run's site, which is identified later.

    `run_input` is the output of another run that it is. While no site is chosen, `reference` is the output, which may be `several` files.
    """

    input: Input
    place: Location
    identity: Identity | None
    run_input: RunInput | None = None
    reference: Reference | None = None
    several: bool = False


def never_several(each: Input) -> bool:
    """Return False: an input is a single file."""
    del each
    return False


def locate_files(
    files: Sequence[Input],
    settings: Settings,
    site: Site | None,
    *,
    identify: bool = True,
    known: Mapping[str, str] | None = None,
    several: Callable[[Input], bool] = never_several,
) -> list[Located]:
    """Locate input files as a run at `site` sees them; without `identify` nothing is read or hashed.

    Without a site all are identified where they are; `locate_for_site` then locates them for one. `known` has for some texts the location that
    was recorded; `several` returns whether an input may be many files, as the outputs of another run are.

    Raises `NotFoundError` with all missing inputs at once, `UsageError` for what cannot be an input, `IncompleteError` for annexed
    content that is not available, and what `resolve_output` raises.
    """
    found: list[Located] = []
    missing: list[NotFoundError] = []
    parts: dict[str, tuple[Location, dict[int, str]]] = {}
    in_place: dict[str, tuple[Location, set[str]]] = {}
    identifier = _Identifier()
    for each in files:
        reference = read_reference(each.text, settings.sites)
        if reference is not None:
            if site is None:
                home, text = find_work_folder(reference, settings), reference.text
                found.append(Located(each, home, Identity(text), None, reference, several(each)))
            else:
                found += _locate_run_input(
                    each, reference, settings, site, several=several(each), query_site=identify
                )
            continue
        recorded = (known or {}).get(each.text)
        text, part, below = split_part(each.text)
        place = read_location(recorded or text, settings, literal=recorded is not None)
        named = replace(each, name=as_text(place.name) or "input", below=below)
        if place.site == site and not place.typed_local:
            found.append(Located(named, place, None))
            if part and identify:
                in_place.setdefault(place.text, (place, set()))[1].add(part)
            continue
        try:
            if part and identify:
                parts.setdefault(place.text, (place, {}))[1][len(found)] = part
            if part or not identify:
                found.append(Located(named, place, Identity("")))
            else:
                found.append(identifier.identify(named, place))
        except NotFoundError as problem:
            missing.append(problem)
    missing += _identify_parts(parts.values(), found, identifier)
    missing += absent_parts(in_place.values())
    if missing:
        raise _all_of(missing)
    return _numbered(found)


def _identify_parts(
    parts: Iterable[tuple[Location, Mapping[int, str]]], found: list[Located], identifier: _Identifier
) -> Iterable[NotFoundError]:
    """Identify the parts of each folder, by their index in `found`; return those that do not exist."""
    for folder, paths in parts:
        try:
            selected = select_parts(folder, paths.values())
        except NotFoundError as problem:
            yield problem
            continue
        for number, path in paths.items():
            found[number] = identifier.identify(found[number].input, folder, selected[path])


def require_local(located: Sequence[Located]) -> None:
    """Raise `NotFoundError` with all files of this machine that do not exist, without reading any."""
    missing = []
    for each in located:
        path = (
            Path(os.fsdecode(each.place.raw)) if each.place.typed_local and each.run_input is None else None
        )
        if path is not None and not path.is_symlink():  # an annexed file is fetched when the run begins
            try:
                stat_local(path)
            except NotFoundError as problem:
                missing.append(problem)
    if missing:
        raise _all_of(missing)


def locate_for_site(located: Sequence[Located], site: Site, settings: Settings) -> list[Located]:
    """Return inputs that were located without a site as a run at a site sees them: inputs at that site need not be staged.

    Raises what `resolve_output` does.
    """
    found: list[Located] = []
    for each in located:
        if each.reference is not None:
            found += _locate_run_input(
                each.input, each.reference, settings, site, several=each.several, query_site=True
            )
        elif each.place.site == site and not each.place.typed_local:
            found.append(replace(each, identity=None))
        else:
            found.append(each)
    return _numbered(found)


def _locate_run_input(
    each: Input, reference: Reference, settings: Settings, site: Site, *, several: bool, query_site: bool
) -> list[Located]:
    run_inputs = resolve_output(each, reference, settings, site, several=several, query_site=query_site)
    return [Located(one.input, one.place, one.identity, one) for one in run_inputs]


def _numbered(found: Sequence[Located]) -> list[Located]:
    """Number inputs in their order, because one reference may be several files."""
    return [replace(each, input=replace(each.input, number=n)) for n, each in enumerate(found)]


class _Identifier:
    """Identifies inputs where they are; what several of them share is read once."""

    def __init__(self) -> None:
        self._content: LocalContent | None = None
        self._fetched: set[bytes] = set()

    def identify(self, each: Input, place: Location, part: Part = WHOLE) -> Located:
        """Identify an input; a local symlink is followed, and the content of an annexed file is fetched."""
        if place.typed_local:
            path = Path(os.fsdecode(place.raw))
            self._fetch(place, part)
            if not part.is_whole:
                self._content = self._content or LocalContent()
            identity = identify_local(path, part, self._content)
            real = os.fsencode(path.resolve()).decode("utf-8", "surrogateescape")
            return Located(each, replace(place, path=real, slash=False), identity)
        with contextlib.closing(open_store(place)) as store:
            identity = identify_elsewhere(place, store, part)
            return Located(
                each, follow_links(place, store), identity
            )  # a transfer would copy a symlink itself

    def _fetch(self, place: Location, part: Part) -> None:
        names = part.rules.files_from
        for path in [place.raw] if names is None else [place.raw + b"/" + name for name in sorted(names)]:
            if path not in self._fetched:
                fetch_content(path, place.logins)
                self._fetched.add(path)


def _all_of(missing: Sequence[NotFoundError]) -> NotFoundError:
    first = missing[0]
    if len(missing) == 1:
        return first
    lines = [f"{problem.subject}: {problem.message}" for problem in missing[:_MOST_NAMED]]
    if len(missing) > len(lines):
        lines.append(f"and {len(missing) - len(lines)} more")
    return NotFoundError(
        first.code,
        "\n".join([counted(len(missing), "input is missing", "inputs are missing"), *lines]),
        hint=first.hint,
    )
