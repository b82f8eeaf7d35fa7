"""Locate and identify the inputs of a run, including outputs of other runs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from hibali.config.model import Site, local_site
from hibali.config.settings import Settings
from hibali.errors import HibaliError, IncompleteError, NotFoundError, UsageError
from hibali.events import Listener, ignore
from hibali.ledger import Journal, ledger_folder, new_identifier, read_records
from hibali.locations import Location, read_location
from hibali.plugins import find
from hibali.system_errors import reason_of
from hibali.text import as_text, counted, printable
from registry.invocation import Invocation
from runs.cache import CONTENT, ORIGIN, Name
from runs.collect import collected_files, protection, pull_files, work_of
from runs.dependencies import require_submitted, require_success
from runs.model import Input, Run, State
from runs.outputs import (
    OutputIdentity,
    Reference,
    content_at,
    find_output,
    inspect_outputs,
    matched_paths,
    moved_outputs,
    read_reference,
    referenced_runs,
    require_whole,
    size_at,
)
from runs.script import Dependencies, Dependency
from runs.store import RunStore
from transfers.engine.request import SaveOptions
from transfers.history.journal import Receipt
from transfers.model.entry import Entry, Kind
from transfers.model.rules import Rules, concerns, selector
from transfers.model.store import Store
from transfers.planning.protected_roots import path_relation
from transfers.remote.host import RemoteHost
from transfers.remote.lending import lending
from transfers.single_files import follow_links
from transfers.stores.open_store import open_store
from transfers.stores.open_views import datasets_at, fetch_content

_RESOLVE_SECONDS = 20.0
_FRESH_NS = 2_000_000_000  # a file changed this shortly before it was hashed can change again unseen


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a folder that is an input: what `rules` select, and small files by path that are `written` in place of the folder's own.

    `shared` are the names that other parts of the same folder have, too.
    """

    rules: Rules = field(default_factory=Rules)
    written: Mapping[bytes, bytes] = field(default_factory=dict)
    shared: frozenset[bytes] = frozenset()

    @property
    def is_whole(self) -> bool:
        """Whether it is the folder itself."""
        return self.rules.files_from is None

    def check_link(self, path: bytes, target: bytes, subject: str) -> None:
        """Raise `UsageError` for a symlink out of the part, whose content would be missing at the site."""
        inside = os.path.normpath(os.path.join(os.path.dirname(path), target))  # noqa: PTH118, PTH120  # bytes
        if self.is_whole or selector(self.rules)(Entry(inside, Kind.FILE)):
            return
        raise UsageError(
            "link-out-of-part",
            f"{printable(path)} is a symlink to {printable(target)}, which is not staged with it",
            subject=subject,
            hint="Put the file itself there, or stage the whole folder: with --each-participant, add --whole-dataset.",
        )


WHOLE = Part()


class LocalContent:
    """Digests of local files, including those of earlier calls."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {
            record["mark"]: record["digest"]
            for record in read_records(_digests_path(), is_cache=True)
            if isinstance(record.get("mark"), str) and isinstance(record.get("digest"), str)
        }

    def of_file(self, path: bytes, found: os.stat_result) -> str:
        """Return the sha256 of a file; it is remembered while size, times, device and inode stay the same.

        Raises `UsageError` if the file cannot be read, `IncompleteError` if it changed meanwhile.
        """
        mark = f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"
        if mark in self._known:
            return self._known[mark]
        try:
            with Path(os.fsdecode(path)).open("rb", buffering=0) as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
                after = os.fstat(stream.fileno())
        except OSError as problem:
            raise unreadable(path, problem) from None
        if (after.st_size, after.st_mtime_ns) != (found.st_size, found.st_mtime_ns):
            raise IncompleteError(
                "input-changed", "the input changed while it was read", subject=printable(path)
            )
        if time.time_ns() - found.st_ctime_ns > _FRESH_NS:
            self._known[mark] = digest
            with contextlib.closing(Journal(_digests_path())) as journal:
                journal.append({"schema": 1, "kind": "digest", "mark": mark, "digest": digest})
        return digest

    def of_tree(self, root: bytes, part: Part = WHOLE) -> tuple[str, dict[bytes, str], int]:
        """Return the digest of a folder's sorted names, kinds and contents; the digests of its files; and their size in bytes.

        In a dataset, annexed files are files. Raises as `of_file` and `Part.check_link` do.
        """
        whole = hashlib.sha256()
        files: dict[bytes, str] = {}
        size = 0
        datasets = datasets_at(root)
        contents = None if datasets is None else datasets.open_contents(root)
        selects = selector(part.rules)
        for path, status in _walk(root, b"", part.rules.files_from):
            if contents is not None and contents.is_reserved(path):
                continue
            content = contents.find(path) if contents is not None and stat.S_ISLNK(status.st_mode) else None
            name, found = content if content is not None else (root + b"/" + path, status)
            if not selects(Entry(path, Kind.FOLDER if stat.S_ISDIR(found.st_mode) else Kind.FILE)):
                continue
            if stat.S_ISLNK(found.st_mode):
                target = os.fsencode(Path(os.fsdecode(root + b"/" + path)).readlink())
                part.check_link(path, target, printable(root))
                mark_text = b"l " + target
            elif stat.S_ISDIR(found.st_mode):
                mark_text = b"d"
            elif stat.S_ISREG(found.st_mode):
                files[path] = self.of_file(name, found)
                size += found.st_size
                mark_text = b"f " + files[path].encode("ascii")
            else:
                raise UsageError(
                    "bad-input", "a device, FIFO or socket cannot be staged", subject=printable(path)
                )
            whole.update(b"%d:%b%b\n" % (len(path), path, mark_text))
        for path, written in sorted(part.written.items()):
            files[path] = hashlib.sha256(written).hexdigest()
            size += len(written)
            whole.update(b"%d:%bf %b\n" % (len(path), path, files[path].encode("ascii")))
        return whole.hexdigest(), files, size


def _walk(
    root: bytes, below: bytes, names: frozenset[bytes] | None
) -> Iterable[tuple[bytes, os.stat_result]]:
    """Yield everything below a folder, or only what concerns `names`, parents first."""
    try:
        with os.scandir(root + b"/" + below) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        for entry in entries:
            path = below + b"/" + entry.name if below else entry.name
            if names is not None and not concerns(path, names):
                continue
            found = entry.stat(follow_symlinks=False)
            yield path, found
            if stat.S_ISDIR(found.st_mode):
                yield from _walk(root, path, names)
    except OSError as problem:
        raise unreadable(root + b"/" + below, problem) from None


def _digests_path() -> Path:
    return ledger_folder("runs", "cache") / "here.digests"


def unreadable(path: bytes, problem: OSError) -> UsageError:
    """Return the error for an input that cannot be read."""
    return UsageError(
        "unreadable-input", f"the input cannot be read: {reason_of(problem)}", subject=printable(path)
    )


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of an input: `text` is part of the run's key; `digest` names it in the cache, "" if it is used in place.

    `files` are the digests by relative path of the files to stage (b"" for a single file), None if they are not known before. `size` is in
    bytes, None if unknown. `part` is the part of a folder that is staged.
    """

    text: str
    digest: str = ""
    files: dict[bytes, str] | None = None
    size: int | None = None
    part: Part = WHOLE

    @property
    def content(self) -> str:
        """The identity of the content, the same at every site; "" if only the location is known."""
        return "" if self.files is None else f"{'sha256' if b'' in self.files else 'tree'}:{self.digest}"

    @property
    def name(self) -> Name:
        """The input's entry in a cache."""
        return Name(ORIGIN if self.files is None else CONTENT, self.digest)


def identify_local(path: Path, part: Part = WHOLE, content: LocalContent | None = None) -> Identity:
    """Identify a local file or folder by its content, which is hashed unless that was done before and it did not change.

    Raises `NotFoundError`, and `UsageError` for anything but a file or folder.
    """
    found = _stat(path)
    content = content or LocalContent()
    if stat.S_ISREG(found.st_mode):
        digest = content.of_file(os.fsencode(path), found)
        return Identity(f"sha256:{digest}", digest, {b"": digest}, found.st_size)
    if stat.S_ISDIR(found.st_mode):
        digest, files, size = content.of_tree(os.fsencode(path), part)
        return Identity(f"tree:{digest}", digest, files, size, part)
    raise UsageError("bad-input", "an input must be a file or a folder", subject=printable(os.fsencode(path)))


def _stat(path: Path) -> os.stat_result:
    """Return the status of an input; raises `NotFoundError`, and `UsageError` if it cannot be read."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(
            "no-such-input",
            "the input file does not exist",
            subject=printable(os.fsencode(path)),
            hint="Relative paths in an invocation are resolved in the current folder.",
        ) from None
    except OSError as problem:
        raise unreadable(os.fsencode(path), problem) from None


def identify_elsewhere(location: Location, store: Store, part: Part = WHOLE) -> Identity:
    """Identify what is at a location of another site by the metadata of its store, of a folder by those of all that is in it.

    Raises `NotFoundError`, and `ListingIncompleteError` for a folder that cannot be listed whole.
    """
    found = store.stat()
    if found is None:
        raise NotFoundError("no-such-input", "the input does not exist at that site", subject=location.text)
    if found.kind is Kind.FOLDER:
        whole, size = hashlib.sha256(), 0
        for entry in _select(store, part):
            if entry.kind is Kind.LINK:
                part.check_link(entry.path, entry.link, location.text)
            whole.update(b"%d:%b%b\n" % (len(entry.path), entry.path, _mark(entry).encode()))
            size += entry.size if entry.kind is Kind.FILE else 0
        for path, written in sorted(part.written.items()):
            whole.update(b"%d:%b%b\n" % (len(path), path, hashlib.sha256(written).digest()))
            size += len(written)
        mark = f"{found.kind}:{whole.hexdigest()}"
    else:
        mark, size = _mark(found), found.size
    text = f"site:{location.site.name}:{location.bucket or ''}:{location.path}:{mark}"
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    return Identity(text, digest, size=size, part=part)


def _select(store: Store, part: Part) -> Iterable[Entry]:
    """List what is in a part of a folder, everything if it is the whole folder."""
    if part.rules.files_from is not None:
        store.list_only(part.rules.files_from)
    return store.list() if part.is_whole else filter(selector(part.rules), store.list())


def _mark(entry: Entry) -> str:
    if entry.kind is Kind.FOLDER:
        return str(entry.kind)
    return ":".join(str(part) for part in (entry.kind, entry.size, entry.mtime_ns, entry.etag or ""))


def identify_for_nodes(host: RemoteHost, site: Site, location: Location) -> tuple[Identity, bytes | None]:
    """Identify an input at the run's site, and return its path there; None if it is staged, because nodes do not see it."""
    identity, path = identify_at_site(host, location)
    if not unseen_by_nodes(host, site, path):
        return identity, path
    with lending(host), contextlib.closing(open_store(location)) as store:
        return identify_elsewhere(location, store), None


def identify_at_site(host: RemoteHost, location: Location) -> tuple[Identity, bytes]:
    """Identify an input at the run's site, and return its absolute path there; raises `NotFoundError`."""
    path = host.expand(location.path)
    found = host.stat(path)
    if found is None:
        raise NotFoundError("no-such-input", "the input does not exist at the site", subject=location.text)
    mark = ":".join(str(part) for part in (found.kind, found.size, found.mtime_ns, found.inode))
    return Identity(f"site:{location.site.name}:{printable(path)}:{mark}"), path


def unseen_by_nodes(host: RemoteHost, site: Site, path: bytes) -> bool:
    """Return whether the innermost root around an absolute path is one that compute nodes do not see, also through symlinks."""
    if all(root.nodes for root in site.roots.values()):
        return False
    roots: list[tuple[bytes, bool]] = []
    for root in site.roots.values():
        with contextlib.suppress(NotFoundError):  # its variable is not set there
            roots.append((host.expand(root), root.nodes))
    paths = [path, *(root for root, _ in roots)]
    found = host.run([b"realpath", b"-z", b"-m", b"--", *paths], timeout=_RESOLVE_SECONDS)
    real = found.stdout.split(b"\0")[:-1]
    if found.exit_code != 0 or len(real) != len(paths):
        real = paths  # the site has no realpath(1)
    around = [
        (len(root), seen)
        for root, (_, seen) in zip(real[1:], roots, strict=True)
        if path_relation(real[0], root) == "in"
    ]
    return bool(around) and not max(around)[1]


@dataclass(frozen=True, slots=True)
class CollectedCopy:
    """All outputs of a run in a local folder; `files` are their paths there."""

    folder: Path
    files: tuple[bytes, ...]
    size: int


def find_collected_copy(run: Run, run_store: RunStore) -> CollectedCopy | None:
    """Return the latest folder into which all outputs were collected at once, if each still has its content."""
    for folder, moved in collected_files(run, run_store):
        found = moved_outputs(run, moved)
        if not found.problems and all(_holds(folder, *each) for each in found.digests.items()):
            return CollectedCopy(folder, tuple(found.files), found.size)
    return None


def _holds(folder: Path, path: bytes, digest: str) -> bool:
    try:
        return identify_local(folder / os.fsdecode(path)).text == f"sha256:{digest}"
    except HibaliError:
        return False


def copy_collected(
    run: Run,
    run_store: RunStore,
    collected: CollectedCopy,
    target: Location,
    saving: SaveOptions,
    on_event: Listener = ignore,
) -> Receipt:
    """Copy collected outputs of a run into another folder and verify them; nothing is copied if it is the same folder."""
    source = Location(local_site(), str(collected.folder), str(collected.folder), typed_local=True)
    if target.typed_local and _same_folder(collected.folder, target):
        count = len(collected.files)
        name = new_identifier()
        return Receipt(
            name, "collect", source.text, target.text, files=count, bytes=collected.size, files_kept=count
        )
    protect = protection(run, run_store, target, saving, lambda _: 0)
    return pull_files("collect", source, target, collected.files, saving, on_event, protect=protect)


def _same_folder(folder: Path, target: Location) -> bool:
    return folder.resolve() == Path(os.fsdecode(target.raw)).resolve()


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


_MOST_NAMED = 100


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


PART = "/./"  # before the part of a folder, as rsync --relative has it


class Parts(Protocol):
    """What knows the parts of folders: an entry point `parts` in `hibali.inputs`."""

    def is_part(self, path: str) -> bool:
        """Return whether a path below a folder names a part of it."""

    def select_parts(self, folder: Location, paths: Sequence[str]) -> Mapping[str, Part]:
        """Return the parts that these paths name. Raises `NotFoundError` with all that do not exist."""


def split_part(text: str) -> tuple[str, str]:
    """Return the folder of an input and the part of it that is the input; "" for what is no part."""
    folder, mark, path = text.rpartition(PART)
    parts = _known_parts() if mark else None
    return (folder, path) if parts is not None and parts.is_part(path) else (text, "")


def _known_parts() -> Any:
    """Return an object like `Parts`; None without that feature."""
    return find("hibali.inputs", "parts")


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
        text, part = split_part(each.text)
        place = read_location(recorded or text, settings, literal=recorded is not None)
        named = replace(each, name=as_text(place.name) or "input")
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
    missing += _absent_parts(in_place.values())
    if missing:
        raise _all_of(missing)
    return _numbered(found)


def _absent_parts(parts: Iterable[tuple[Location, set[str]]]) -> Iterable[NotFoundError]:
    """Yield an error for each part without a folder: the whole folder is used in place, so nothing else would miss it."""
    for folder, paths in parts:
        with contextlib.closing(open_store(folder)) as store:
            for path in sorted(paths):
                if store.stat(path.encode("ascii")) is None:
                    message = "the input does not exist at the site"
                    yield NotFoundError("no-such-input", message, subject=f"{folder.text}{PART}{path}")


def _identify_parts(
    parts: Iterable[tuple[Location, Mapping[int, str]]], found: list[Located], identifier: _Identifier
) -> Iterable[NotFoundError]:
    """Identify the parts of each folder, by their index in `found`; return those that do not exist."""
    for folder, paths in parts:
        try:
            selected = _known_parts().select_parts(folder, tuple(paths.values()))
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
                _stat(path)
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
