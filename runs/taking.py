"""Taking an output of another run as an input: where it lies for the new run, and what is known of it."""

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
from runs.left import content_at, look_at, matched_paths, require_whole, work_location
from runs.prepare import Input, Waiting
from runs.reference import Named, Reference, find_output, read_reference
from runs.run import Output, Run
from runs.stage import Identity


@dataclass(frozen=True, slots=True)
class Taken:
    """A file or folder that a run left, as an input of another one; `path` is relative to the work folder of that run."""

    input: Input
    place: Location
    identity: Identity
    run: Run
    path: str


def list_references(files: Iterable[Input], settings: Settings) -> list[Reference]:
    """The outputs of runs among files that are named; raises `UsageError` for what only looks like one."""
    found = (read_reference(each.text, settings.sites) for each in files)
    return [each for each in found if each is not None]


def take_output(
    each: Input, reference: Reference, settings: Settings, site: Site, *, several: bool, look: bool
) -> list[Taken]:
    """What an answer stands for: one file or folder, or with `several` all that a pattern takes.

    At the run's own site it is used in place, whether it is there yet or not; from elsewhere it is hashed, and staged by its
    content. Without `look` no site is asked anything. Raises `NotFoundError`, `UsageError`, `IncompleteError` for what is missing or no
    regular file, and what `require_success` raises.
    """
    run = Book().load(reference.run)
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
            identity = Identity(reference.text, content.digest, content.files)
        taken = _taken(each, reference, run, home, text, here=here)
        found.append(taken if identity is None else replace(taken, identity=identity))
    if output.is_pattern:
        found = [_told_apart(taken, reference) for taken in found]
    if len(found) > 1 and not several:
        raise UsageError(
            "several-files",
            f"the output is {len(found)} files, and this input takes one",
            about=f"{each.id}: {printable(reference.text)}",
        )
    return found


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
            runs[each.run.id] = each.run
            paths.setdefault(each.run.id, []).append(each.path)
    runs |= {run.id: run for run in after if run.site == site.name and run.sweep is None}
    needs = (
        Need(run.id, run.folder.decode("utf-8", "surrogateescape"), tuple(paths.get(run.id, ())))
        for run in runs.values()
    )
    jobs = (run.job for run in runs.values() if run.job and not run.state.ended)
    return Waiting(tuple(needs), tuple(jobs), hold)


def outputs_taken(references: Iterable[Reference], run: Run) -> list[Output]:
    """What is taken of one run."""
    return [find_output(run, each) for each in references if each.run == run.id]
