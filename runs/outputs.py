"""List and hash the outputs of a run at its site, and resolve references to them; only names and digests are transferred."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hibali.config.model import Site
from hibali.errors import IncompleteError, NotFoundError, UsageError
from hibali.events import Failed
from hibali.locations import Location, path_at
from hibali.text import as_bytes, as_text, nearest, printable
from runs.collect import (
    ChosenFiles,
    choose_outputs,
    choose_tasks,
    collected_files,
    outputs_folder,
    require_end,
)
from runs.model import FROM_RUN, RUN_ID, Output, Run
from runs.records import part_of, tasks_as_runs
from runs.store import RunStore
from transfers.history.recorded_digests import DigestCache, Expected
from transfers.model.entry import Entry, Kind
from transfers.model.store import Store
from transfers.model.units import Problem
from transfers.stores.open_store import open_store

_WORK = b"work/"
_SLACK_NS = 2_000_000_000  # the clocks of a job's nodes may differ a little


@dataclass(slots=True)
class RunOutputs:
    """The outputs in a run's work folder: files and folders by their paths there, and problems (S12).

    `changed` are the files and folders that changed since the run ended; `digests` are those of the files, if they were hashed.
    """

    files: dict[bytes, Entry] = field(default_factory=dict)
    folders: dict[bytes, Entry] = field(default_factory=dict)
    problems: list[Failed] = field(default_factory=list)
    changed: list[bytes] = field(default_factory=list)
    digests: dict[bytes, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a file or folder: `digest` of the file, or of the tree; `files` as in `runs.identity.Identity`."""

    digest: str
    files: dict[bytes, str]

    @property
    def text(self) -> str:
        """The identity of the content, the same at every site (`runs.identity.identify_local`)."""
        return f"{'sha256' if b'' in self.files else 'tree'}:{self.digest}"


def inspect_outputs(run: Run, site: Site, outputs: Sequence[Output], *, hashed: bool) -> RunOutputs:
    """List outputs of a run that has ended, and hash them unless that was done before and nothing changed.

    Raises `NotFoundError` if the run's folder was removed, and the errors of connecting to the site.
    """
    with contextlib.closing(open_store(path_at(site, run.folder))) as store:
        record = store.stat(b"exit.json")
        if record is None:
            raise NotFoundError(
                "outputs-gone",
                "the outputs of the run no longer exist at its site",
                subject=f"{site.name}:{printable(run.folder)}",
                hint="Run it again.",
            )
        existing = RunOutputs()
        chosen = choose_outputs(outputs, _note_entries(store.list(), existing))
        existing.problems = chosen.problems
        existing.files = chosen.files
        # the job wrote its record last, by the same filesystem clock as the outputs
        ended = _changed_ns(record) + _SLACK_NS
        holding = _folders_to_check(outputs, chosen.folders, existing.folders)
        inspected = [*existing.files.values(), *(existing.folders[path] for path in holding)]
        existing.changed = [entry.path for entry in inspected if _changed_ns(entry) > ended]
        if hashed:
            _hash(store, ("run", run.id), existing, _WORK)
        return existing


def _note_entries(entries: Iterable[Entry], existing: RunOutputs) -> Iterator[Entry]:
    """List the work folder by path."""
    for entry in entries:
        if entry.path + b"/" == _WORK:
            existing.folders[b""] = entry._replace(path=b"")
        if not entry.path.startswith(_WORK):
            continue
        below = entry._replace(path=entry.path[len(_WORK) :])
        if below.kind is Kind.FILE:
            existing.files[below.path] = below
        elif below.kind is Kind.FOLDER:
            existing.folders[below.path] = below
        yield below


def _folders_to_check(
    outputs: Sequence[Output], chosen: Sequence[bytes], folders: Iterable[bytes]
) -> list[bytes]:
    """Return the folders whose change times reveal that an output was removed: those of outputs, and those in which patterns match."""
    depths = {each.path.count("/") for each in outputs if each.is_pattern}
    around = [path for path in folders if (path.count(b"/") + 1 if path else 0) in depths]
    return list(dict.fromkeys([*chosen, *around]))


def _changed_ns(entry: Entry) -> int:
    """Return the time of the last change of content or name; a file's mtime, which a tool can set, is used only if there is no ctime."""
    return entry.ctime_ns or entry.mtime_ns


def _hash(store: Store, subject: Sequence[str | None], existing: RunOutputs, below: bytes = b"") -> None:
    """Hash the files that were listed `below` a store's root; `subject` names the record of their digests."""
    with contextlib.closing(DigestCache("contents", list(subject), keep=True)) as run_store:
        unknown = []
        for path, entry in existing.files.items():
            known = run_store.find([entry])
            if known is None:
                unknown.append(entry._replace(path=below + path))
            else:
                existing.digests[path] = known
        for entry, digest, problem in store.digest(unknown):
            path = entry.path[len(below) :]
            if digest is None:
                existing.problems.append(_unhashed(path, problem))
            else:
                run_store.add([existing.files[path]], digest)
                existing.digests[path] = digest


def content_of_place(place: Location) -> Content | None:
    """Hash a file or folder at a site with a filesystem, unless that was done before and it did not change.

    Returns None if it contains symlinks or special files, which cannot be compared. Raises `NotFoundError`, and the errors of
    connecting to the site.
    """
    with contextlib.closing(open_store(place)) as store:
        found = store.stat()
        if found is not None and found.kind is Kind.FOLDER:
            existing = RunOutputs()
            for entry in store.list():
                if entry.kind not in {Kind.FILE, Kind.FOLDER}:
                    return None
                (existing.files if entry.kind is Kind.FILE else existing.folders)[entry.path] = entry
            return _content(store, place, existing, b"")
    with contextlib.closing(open_store(place.parent)) as store:
        found = store.stat(place.name)
        if found is None:
            raise NotFoundError("no-such-input", "the input does not exist at the site", subject=place.text)
        return _content(store, place, RunOutputs({place.name: found}), place.name)


def _content(store: Store, place: Location, existing: RunOutputs, path: bytes) -> Content | None:
    if any(each.kind is not Kind.FILE for each in existing.files.values()):
        return None
    root = as_text(store.root_path)
    _hash(store, ("place", place.site.name, root), existing)
    return None if existing.problems else content_at(path, existing)


def find_content(run: Run, site: Site, named: OutputIdentity) -> Content | None:
    """Hash the output that an input's identity names, at the site of the run; None if it changed since the run ended.

    Raises what `inspect_outputs` does, and `NotFoundError` for an output that the run never declared.
    """
    output = find_output(run, named.reference)
    existing = inspect_outputs(run, site, [output], hashed=True)
    if existing.problems or existing.changed:
        return None
    paths = matched_paths(output, existing)
    wanted = [path for path in paths if not named.path or printable(path) == named.path]
    return content_at(wanted[0], existing) if len(wanted) == 1 else None


def require_whole(existing: RunOutputs, subject: str) -> None:
    """Raise `IncompleteError` for outputs that are missing, no regular files, or unreadable."""
    if existing.problems:
        first = existing.problems[0]
        more = f" (and {len(existing.problems) - 1} more)" if len(existing.problems) > 1 else ""
        raise IncompleteError(
            first.code, f"{printable(first.path) or '.'}: {first.message}{more}", subject=subject
        )


def matched_paths(output: Output, existing: RunOutputs) -> list[bytes]:
    """Return the paths of an output: its own, or each that a pattern matches, sorted in byte order."""
    path = output.path.encode("utf-8", "surrogateescape")
    if not output.is_pattern:
        return [b"" if path == b"." else path]
    depth = path.count(b"/") + 1
    tops = {b"/".join(each.split(b"/")[:depth]) for each in existing.files} | existing.folders.keys()
    entries = [Entry(top, Kind.FILE) for top in sorted(tops) if top.count(b"/") + 1 == depth]
    return list(choose_outputs([output], entries).files)


def content_at(path: bytes, existing: RunOutputs) -> Content:
    """Return the content of one file or folder that was hashed."""
    if path in existing.digests:
        return Content(existing.digests[path], {b"": existing.digests[path]})
    below = path + b"/" if path else b""
    files = {each[len(below) :]: d for each, d in existing.digests.items() if each.startswith(below)}
    folders = {each[len(below) :] for each in existing.folders if each.startswith(below) and each != path}
    return Content(tree_digest(files, folders), files)


def size_at(path: bytes, existing: RunOutputs) -> int:
    """Return the size of one file or folder that was listed, in bytes."""
    below = path + b"/" if path else b""
    return sum(each.size for name, each in existing.files.items() if name == path or name.startswith(below))


def tree_digest(files: Mapping[bytes, str], folders: Iterable[bytes]) -> str:
    """Return the digest of a folder of regular files, the same as `runs.identity.identify_local` finds for an equal one here."""
    marks = {**dict.fromkeys(folders, b"d"), **{path: b"f " + d.encode("ascii") for path, d in files.items()}}
    whole = hashlib.sha256()
    for path in sorted(marks, key=lambda each: each.split(b"/")):
        whole.update(b"%d:%b%b\n" % (len(path), path, marks[path]))
    return whole.hexdigest()


@dataclass(slots=True)
class OutputDigests:
    """sha256 and size by path, relative to the work folder, and problems with the other outputs (S12)."""

    files: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    problems: list[Failed] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The size of all files together, in bytes."""
        return sum(size for _, size in self.files.values())

    @property
    def digests(self) -> dict[bytes, str]:
        """The sha256 of each file."""
        return {path: digest for path, (digest, _) in self.files.items()}


def outputs_of(run: Run, run_store: RunStore, site: Callable[[], Site]) -> OutputDigests:
    """Return the outputs of a run that has ended, as they were collected or are at its site; those of a task of a sweep as `N/PATH`.

    Missing outputs are reported of failed tasks, too. Raises what `require_end` does, and `NotFoundError` if the folder was removed.
    """
    require_end(run)
    return recorded_outputs(run, run_store) or hash_outputs(run, site())


def recorded_outputs(run: Run, run_store: RunStore) -> OutputDigests | None:
    """Return the outputs that one `runs collect` moved completely, with their verified digests; None if no single call did."""
    for _, moved in collected_files(run, run_store):
        return moved_outputs(run, moved)
    return None


def moved_outputs(run: Run, moved: Mapping[bytes, Expected]) -> OutputDigests:
    """Return the outputs among the files of one collection."""
    numbers = {as_bytes(name): number for number, name in run.task_names().items()}
    paths = {name if run.sweep is None else _at_site(name, numbers): name for name in moved}
    chosen = _choose_all(run, (Entry(path, Kind.FILE, moved[paths[path]].size) for path in sorted(paths)))
    found = {name: moved[paths[entry.path]] for name, entry in chosen.files.items()}
    return OutputDigests({name: (each.digest, each.size) for name, each in found.items()}, chosen.problems)


def _at_site(collected: bytes, numbers: Mapping[bytes, int]) -> bytes:
    """Return the path in the folder of all tasks of a collected file; `numbers` are those of the tasks by their names."""
    parts = collected.split(b"/")
    depth = next(depth for depth in (1, 2) if b"/".join(parts[:depth]) in numbers)
    return b"%d/%b%b" % (numbers[b"/".join(parts[:depth])], _WORK, b"/".join(parts[depth:]))


def _choose_all(run: Run, entries: Iterable[Entry]) -> ChosenFiles:
    """Choose the outputs of all tasks from a listing of the folder at the site that has them; those of tasks are named `N/PATH`."""
    folders = {number: b"%d" % number if number else b"" for number in run.tasks}
    return choose_tasks(entries, run.outputs(), run.tasks.keys(), folders)


def hash_outputs(run: Run, site: Site) -> OutputDigests:
    """List the outputs of a run at its site, and hash all of them; named and reported as by `outputs_of`.

    Raises `NotFoundError` if the folder was removed.
    """
    with contextlib.closing(open_store(outputs_folder(run, site))) as store:
        if store.stat() is None:
            raise NotFoundError(
                "outputs-gone",
                "the run's folder no longer exists at the site, and the digests of its outputs were not recorded",
                subject=f"{site.name}:{printable(run.folder)}",
                hint="Run it again.",
            )
        chosen = _choose_all(run, store.list())
        found = OutputDigests(problems=chosen.problems)
        names = {entry.path: name for name, entry in chosen.files.items()}
        for entry, digest, problem in store.digest(list(chosen.files.values())):
            if digest is None:
                found.problems.append(_unhashed(names[entry.path], problem))
            else:
                found.files[names[entry.path]] = (digest, entry.size)
        return found


def _unhashed(path: bytes, problem: Problem | None) -> Failed:
    reason = problem or Problem("unreadable", "the site returned no digest")
    return Failed(path, reason.code, reason.message)


_RUN = rf"{FROM_RUN}({RUN_ID.pattern})(?:\.([1-9][0-9]{{0,8}}))?"
_REFERENCE = re.compile(rf"{_RUN}/([^/]+)(?:/(.*))?", re.DOTALL)
_IDENTITY = re.compile(rf"{_RUN}/([^/:]+)(?:/(.*)|:(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Reference:
    """An output of a run, by its id; `below` is a path in an output folder, "" for all of it.

    Of a sweep `task` is the number of a task, 0 for all of them in their order.
    """

    run: str
    output: str
    below: str = ""
    task: int = 0

    @property
    def text(self) -> str:
        """The reference as users write it. Its content never changes, because a run writes its outputs once."""
        of = f"{FROM_RUN}{self.run}{f'.{self.task}' if self.task else ''}"
        return "/".join(part for part in (of, self.output, self.below) if part)


@dataclass(frozen=True, slots=True)
class OutputIdentity:
    """The identity of an input that is an output; `path` is that of one file of a pattern, printable, "" for all of it."""

    reference: Reference
    path: str = ""

    @property
    def text(self) -> str:
        """The identity as the ledger has it."""
        return f"{self.reference.text}:{self.path}" if self.path else self.reference.text


def read_output_identity(identity: str) -> OutputIdentity | None:
    """Read an identity that `OutputIdentity.text` wrote; None for an identity of another kind."""
    found = _IDENTITY.fullmatch(identity)
    if found is None:
        return None
    return OutputIdentity(Reference(found[1], found[3], found[4] or "", int(found[2] or 0)), found[5] or "")


def read_reference(text: str, sites: Container[str]) -> Reference | None:
    """Read the reference to an output in an input; None if the input is a path.

    A site may be named `run`: text after `run:` that does not begin with a run's id is then a path there. Raises `UsageError` for a malformed
    reference, and for a path that contains `..`.
    """
    if not text.startswith(FROM_RUN):
        return None
    found = _REFERENCE.fullmatch(text)
    if found is None:
        if FROM_RUN.rstrip(":") in sites and not RUN_ID.match(text.removeprefix(FROM_RUN)):
            return None
        raise UsageError(
            "bad-reference",
            "the output of a run is written run:ID/OUTPUT-ID, or run:ID/OUTPUT-ID/PATH for what is below a folder;"
            " of one task of a sweep run:ID.TASK/OUTPUT-ID",
            subject=printable(text),
            hint="`hibali runs show ID --json` lists its outputs. A local file of that name: ./run:...",
        )
    below = (found[4] or "").removesuffix("/")
    if (below and not {"", ".", ".."}.isdisjoint(below.split("/"))) or "\0" in below:
        raise UsageError(
            "bad-reference", "a path below an output must not contain `..`", subject=printable(text)
        )
    return Reference(found[1], found[3], below, int(found[2] or 0))


def referenced_runs(run: Run, reference: Reference) -> list[Run]:
    """Return the run itself, or of a sweep the referenced tasks, as runs by themselves, in their order.

    Raises `UsageError` for a task of a run that is no sweep, `NotFoundError` for an unknown task.
    """
    if run.sweep is None or reference.task:
        return [part_of(run, reference.task)]
    return tasks_as_runs(run, run.sweep.tasks)


def find_output(run: Run, reference: Reference) -> Output:
    """Return the declared output that a reference names, with the path of the reference; which is then required.

    Raises `NotFoundError` for an unknown output, `UsageError` for a path below a pattern.
    """
    found = next((each for each in run.spec.outputs if each.id == reference.output), None)
    if found is None:
        known = [each.id for each in run.spec.outputs]
        suggestion = nearest(reference.output, known)
        raise NotFoundError(
            "no-such-output",
            "the run has no output with this id",
            subject=printable(reference.text),
            hint=f"Did you mean {suggestion}?"
            if suggestion
            else f"Its outputs: {', '.join(known) or 'none'}",
        )
    if not reference.below:
        return replace(found, optional=False)
    if found.is_pattern:
        raise UsageError(
            "bad-reference",
            "this output is a pattern; all matching files are used together",
            subject=printable(reference.text),
            hint=f"Write {replace(reference, below='').text} as an item of a list.",
        )
    path = reference.below if found.path == "." else f"{found.path}/{reference.below}"
    return replace(found, path=path, optional=False, is_list=False)
