"""Taking an output of another run, or of tasks of a sweep, as an input: where it lies for the new run, and what is known of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hibali.errors import UsageError
from hibali.locations import Location
from hibali.settings import Settings
from hibali.sites import Site
from hibali.text import printable
from runs.book import Book
from runs.chain import require_submitted, require_success
from runs.guard import Need
from runs.identity import Identity
from runs.left import content_at, look_at, matched_paths, require_whole, size_at, work_location
from runs.prepare import Input, Waiting
from runs.reference import Named, Reference, find_output, parts_meant, read_reference
from runs.run import Run, State


@dataclass(frozen=True, slots=True)
class Taken:
    """A file or folder that a run left, as an input of another one; `path` is relative to the work folder of that run.

    Of a sweep `run` is the task, as a run by itself.
    """

    input: Input
    place: Location
    identity: Identity
    run: Run
    path: str


def list_references(files: Iterable[Input], settings: Settings) -> list[Reference]:
    """The outputs of runs among files that are named; raises `UsageError` for what only looks like one."""
    found = (read_reference(each.text, settings.sites) for each in files)
    return [each for each in found if each is not None]


def find_home(reference: Reference, settings: Settings) -> Location:
    """Where the run that is meant left what it did, before anything is looked at there.

    Raises `NotFoundError` and `UsageError` for what it never was to leave.
    """
    run = Book().load(reference.run)
    for part in parts_meant(run, reference):
        find_output(part, reference)
    return work_location(run, settings.site(run.site))


def take_output(
    each: Input, reference: Reference, settings: Settings, site: Site, *, several: bool, look: bool
) -> list[Taken]:
    """What an answer stands for: one file or folder, or with `several` all that a pattern takes, of each task of a sweep.

    At the run's own site it is used in place, whether it is there yet or not; from elsewhere it is hashed, and staged by its
    content. Without `look` no site is asked anything. Raises `NotFoundError`, `UsageError`, `IncompleteError` for what is missing or no
    regular file, and what `require_success` raises.
    """
    run = Book().load(reference.run)
    found = [
        taken
        for part in parts_meant(run, reference)
        for taken in _take_of(each, replace(reference, task=part.task), part, settings, site, look=look)
    ]
    if len(found) > 1 and not several:
        one = replace(reference, task=found[0].run.task, below="").text
        raise UsageError(
            "several-files",
            f"the output is {len(found)} files, and this input takes one",
            about=f"{each.id}: {printable(reference.text)}".removeprefix(": "),
            hint=f"Name one task of the sweep: {one}" if run.sweep is not None and not reference.task else "",
        )
    return found


def _take_of(
    each: Input, reference: Reference, run: Run, settings: Settings, site: Site, *, look: bool
) -> list[Taken]:
    """Of one run, or of one task as a run by itself."""
    output = find_output(run, reference)
    require_submitted(run)
    home = settings.site(run.site)
    here = home.name == site.name
    if not look or (here and not output.is_pattern):
        return [_taken(each, reference, run, home, output.path, here=here)]
    require_success(run)
    standing = look_at(run, home, [output], hashed=not here)
    require_whole(standing, reference.text)
    found = []
    for path in matched_paths(output, standing):
        text = path.decode("utf-8", "surrogateescape") or "."
        identity = None
        if not here:
            content = content_at(path, standing)
            identity = Identity(reference.text, content.digest, content.files, size_at(path, standing))
        taken = _taken(each, reference, run, home, text, here=here)
        found.append(taken if identity is None else replace(taken, identity=identity))
    return [_told_apart(taken, reference) for taken in found] if output.is_pattern else found


def _taken(each: Input, reference: Reference, run: Run, home: Site, path: str, *, here: bool) -> Taken:
    place = work_location(run, home)
    for part in path.split("/") if path != "." else ():
        place = place.child(part.encode("utf-8", "surrogateescape"))
    named = replace(each, name=place.name.decode("utf-8", "surrogateescape"))
    if here:
        named = replace(named, in_place=True, source=place.path)
    return Taken(named, place, Identity(reference.text), run, path)


def _told_apart(taken: Taken, reference: Reference) -> Taken:
    """Of a pattern each file has an identity of its own."""
    text = Named(reference, printable(taken.path)).text
    return replace(taken, identity=replace(taken.identity, text=text))


def waiting_of(taken: Iterable[Taken], after: Iterable[Run], site: Site, *, hold: bool) -> Waiting:
    """What the job at this site has to look after: runs there whose outputs it takes, and runs there that come first.

    The jobs are those of the ledger; whoever submits asks again.
    """
    runs: dict[str, Run] = {}
    paths: dict[str, list[str]] = {}
    for each in taken:
        if each.run.site == site.name:
            runs[each.run.word] = each.run
            paths.setdefault(each.run.word, []).append(each.path)
    for run in after:
        if run.site == site.name and not (run.sweep is not None and run.state is State.SUCCEEDED):
            runs[run.word] = run
    needs = (
        Need(
            run.id,
            run.folder.decode("utf-8", "surrogateescape"),
            tuple(paths.get(run.word, ())),
            run.task,
            all_tasks=run.sweep is not None,
        )
        for run in runs.values()
    )
    jobs = (run.job for run in runs.values() if run.job and not run.state.ended)
    return Waiting(tuple(needs), tuple(dict.fromkeys(jobs)), hold)
