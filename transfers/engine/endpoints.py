"""Open the source and the target of a transfer, and refuse what they cannot do together."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from hibali.cancellation import in_this_context
from hibali.config.model import Site
from hibali.errors import RefusedError, UsageError
from hibali.events import Listener
from hibali.ledger import now, scheduled_by
from hibali.locations import Location, check_writable
from hibali.text import printable
from transfers.agent.identity import Identity, child
from transfers.engine.collections import identity_at
from transfers.engine.request import Request, SavingView
from transfers.history.journal import Recorder
from transfers.model.entry import Entry, Kind, Verification, weakest
from transfers.model.facts import Facts, name_problem
from transfers.model.rules import Rules
from transfers.model.store import Origin, Side, Source, Store, StoreView
from transfers.planning.overlap import (
    KnownRoots,
    check_another_file,
    check_apart,
    check_backup_apart,
    check_real_file,
)
from transfers.planning.planner import missing_source
from transfers.planning.protected_roots import (
    check_named,
    check_read_only_roots,
    check_root_exists,
    check_unprotected,
    path_relation,
)
from transfers.remote.one_session import one_session_at
from transfers.stores.agent_store import PosixStore
from transfers.stores.open_views import ViewOpener, refuse_dataset, refuse_packed
from transfers.stores.renamed_source import RenamedSource
from transfers.stores.single_file import ChosenStore, GatheredSource, SingleSource, SingleTarget

if TYPE_CHECKING:  # start-up: only for saved plans
    from transfers.planning.plan_file import Header

_IDENTIFIED = 1000  # folders in one request
_TYPED = frozenset({"push", "pull", "sync", "apply"})


@dataclass(slots=True)
class Endpoints:
    """The opened source and target of one attempt.

    Attributes:
        request: the transfer.
        root: the store at the location of the source.
        source: `root`, files and folders from several folders in it, one of these with other paths, or one file of its parent folder.
        target: the store that is written.
        existed: whether its root existed when it was opened.
        stack: closes everything that the attempt opens.
    """

    request: Request
    root: Store
    source: Source
    target: Store
    existed: bool
    stack: ExitStack

    @property
    def sites(self) -> tuple[Site, Site]:
        """The sites of the source and the target."""
        return self.request.source.site, self.request.target.site

    @property
    def single(self) -> SingleSource | None:
        """The source if it is one file, else None."""
        return self.source if isinstance(self.source, SingleSource) else None

    @property
    def origin(self) -> Origin:
        """The store that is read, and the file's name in it if the source is one file."""
        if isinstance(self.source, GatheredSource | RenamedSource):
            return Origin(self.root, renames=self.source.name_in_store)
        return Origin(self.single.store, self.single.name) if self.single else Origin(self.root)

    @property
    def lists_all(self) -> bool:
        """Whether the listing of the target has all of its names."""
        return self.single is None and self.request.members is None

    @property
    def target_side(self) -> Side:
        """The side that is listed and compared at the target."""
        return SingleTarget(self.target, self.single.shown) if self.single else self.target

    @property
    def source_path(self) -> bytes:
        """The path of the source as its site knows it: of the root, or of the one file."""
        if self.single is None:
            return self.root.root_path
        above, name = self.single.store.root_path.rstrip(b"/"), self.single.name
        # a bucket's keys begin without a slash
        return name if not above and self.request.source.bucket is not None else above + b"/" + name

    @property
    def target_path(self) -> bytes:
        """The path of the target as its site knows it: of the root, or of the one file."""
        return self.target.root_path + (b"/" + self.single.shown if self.single else b"")

    @property
    def saves(self) -> SavingView | None:
        """The view that commits what is written, if the target is in a dataset."""
        store = self.target
        while isinstance(store, StoreView) and not isinstance(store, SavingView):
            store = store.store
        return store if isinstance(store, SavingView) else None

    @property
    def required_verification(self) -> Verification:
        """The weakest accepted verification of a moved file."""
        best = weakest(self.source.facts.read_verification, self.target.facts.write_verification)
        return self.request.rules.require_proof or best

    def header(self) -> Header:
        """Return the header of a saved plan."""
        from transfers.planning.plan_file import (  # start-up: only for saved plans
            Header,
            PlanEndpoint,
            absolute_text,
        )

        request = self.request
        return Header(
            PlanEndpoint(absolute_text(request.source), self.root.root_path),
            PlanEndpoint(absolute_text(request.target), self.target.root_path),
            request.rules,
            now(),
            single=self.single is not None,
        )


def open_endpoints(
    request: Request,
    recorder: Recorder,
    stores: list[Store],
    stack: ExitStack,
) -> Endpoints:
    """Open both endpoints and check them.

    Args:
        request: the transfer.
        recorder: the recorder of the operation.
        stores: receives every store as soon as it is open, also if this raises.
        stack: closes the stores.

    Raises:
        UsageError: an impossible combination; for a saved plan `RefusedError` instead.
        RefusedError: these endpoints cannot be used together.
        HibaliError: an endpoint cannot be reached.
    """
    if request.direct:
        _check_direct(request.source, request.target)
    stack.enter_context(one_session_at(request.source, request.target))
    try:
        endpoints = _open_both(_Opener(request, recorder.on_event, stores, stack))
    except UsageError as problem:
        if request.saved is None:
            raise
        from transfers.planning.recheck import drift  # start-up: only for saved plans

        raise drift(problem.message, problem.subject) from None
    if request.within_site:
        _check_within_site(endpoints)
    check_facts(request, endpoints.source.facts, endpoints.target.facts)
    check_overlap(endpoints)
    check_read_only_roots(request.target, endpoints.target_path, endpoints.target)
    subjects = (request.source.text, request.target.text)
    check_fidelity(request.rules, endpoints.source.facts, endpoints.target.facts, subjects)
    if request.rules.xattrs:
        _request_attributes(request, endpoints.target, stores)
    if request.backup is not None:
        check_backup(request.backup, request.target, endpoints.target)
        _check_backup_overlap(endpoints, request.backup)
    return endpoints


class _Opener(ViewOpener):
    """A factory of the stores of one attempt."""

    def __init__(self, request: Request, on_event: Listener, stores: list[Store], stack: ExitStack) -> None:
        super().__init__(on_event, paced=request.paced)
        self.request = request
        self.on_event = on_event
        self.stack = stack
        self._stores = stores
        self._to_close: list[Store] = []
        stack.callback(self._close_all)

    def register(self, store: Store) -> Store:
        """Register a store with the attempt, which closes it."""
        self._to_close.append(store)
        self._stores.append(store)
        return store

    def _close_all(self) -> None:
        """Close all stores at the same time, because each waits for its own server."""
        problems: list[Exception] = []

        def close(store: Store) -> None:
            try:
                store.close()
            except Exception as problem:  # noqa: BLE001  # raised again below, by the thread that waits
                problems.append(problem)

        threads = [
            threading.Thread(target=in_this_context(close), args=(store,), name="close")
            for store in self._to_close
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            raise problems[0]

    def open_target(self, location: Location) -> tuple[Store, Entry | None]:
        """Open a target, or the view of it that an option brings; return it and its root, if that exists.

        Raises:
            RefusedError: packs and plain files would be mixed, or the root of a schedule was replaced.
            UsageError: a push to siblings without a dataset.
        """
        request = self.request
        plain = self.open(location)
        self._to_close.append(plain)
        plain.become_target()
        root = plain.stat()
        if root is None:
            check_root_exists(location, plain, self.open, plain.missing_names())
        known = _known_roots(request, plain)
        if known is not None:
            known.check(location, plain)
        if isinstance(plain, SavingView):
            plain.receive(request.saving)
        elif request.saving.push_to:
            raise UsageError(
                "no-dataset",
                "--push-to needs a target in a dataset on this machine; this target is in none",
                subject=request.target.text,
            )
        elif request.rules.delete and location.site.kind == "local":
            refuse_dataset(plain.root_path, location.text)
        for option in request.options:
            view = option.open_target(plain, location.text)
            if view is not None:
                self._to_close[-1] = view  # it closes the plain one
                self._stores.append(view)
                return view, view.stat()
        refuse_packed(plain, location.text)
        self._stores.append(plain)
        return plain, root


def _open_both(opener: _Opener) -> Endpoints:
    """Open both endpoints; trailing slashes have the meaning that rclone gives them.

    The contents of a folder go into the target, and a file goes to exactly that name.
    """
    request = opener.request
    source = request.source
    store, found = opener.find(source)
    if request.chosen is not None:
        store = ChosenStore(store, request.chosen)
    opener.register(store)
    if found is None:
        raise missing_source(source.text)
    if found.kind is Kind.FILE and source.slash:
        raise UsageError(
            "not-a-folder", "the source is a file, but its path ends with a slash", subject=source.text
        )
    if request.move:
        _check_removable(opener, store, found)
    for option in request.options:
        if request.members is not None:
            raise UsageError("usage", f"{option.flag} takes one source, not several", subject=source.text)
        option.check(request, single=found.kind is not Kind.FOLDER)
    target = replace(request.target, confined=request.rules.delete)
    if found.kind is not Kind.FOLDER:
        return _open_file(opener, store, target)
    if request.members is not None:
        return _open_members(opener, store, target, request.members.paths)
    if request.rules.files_from is not None:
        store.list_only(request.rules.files_from)
    # only if the source has no other request to answer first
    if request.saved is None and not request.rules.xattrs:
        store.list_ahead()
    opened, existing = opener.open_target(target)
    if existing is not None and existing.kind is Kind.FILE:
        raise UsageError(
            "not-a-folder", "the source is a folder and the target is a file", subject=target.text
        )
    return Endpoints(request, store, _renamed(store, request), opened, existing is not None, opener.stack)


def _renamed(source: Store | GatheredSource, request: Request) -> Source:
    """Return the source with the paths that --rename gives it."""
    return RenamedSource(source, request.rules.rename) if request.rules.rename else source


def _one_file_renamed(request: Request) -> UsageError:
    target = request.target.text + ("NEWNAME" if request.target.slash else "")
    line = shlex.join(["hibali", request.operation, request.source.text, target])
    return UsageError(
        "usage",
        "--rename rewrites paths below a folder, and the source is a file",
        subject=request.source.text,
        hint=f"Give the file another name by the target: {line}",
    )


def _open_members(
    opener: _Opener, store: Store, target: Location, members: Mapping[bytes, bytes]
) -> Endpoints:
    """Open the folder of several sources, and the folder that they go into. Raises `NotFoundError` for one that is missing."""
    request, found = opener.request, dict[bytes, Entry]()
    for name, path in members.items():
        entry = store.stat(path)
        if entry is None:
            raise missing_source(request.source.child(path).text)
        found[name] = entry._replace(path=path)
    opened, existing = opener.open_target(target)
    if existing is not None and existing.kind is not Kind.FOLDER:
        raise UsageError(
            "not-a-folder", "the target of several sources must be a folder", subject=target.text
        )
    plain = all(name == path for name, path in members.items())
    source = _renamed(store if plain else GatheredSource(store, members), request)
    endpoints = Endpoints(request, store, source, opened, existing is not None, opener.stack)
    _check_members_apart(endpoints, found)
    store.list_only(frozenset(members.values()))
    # with --delete the limit is a share of all files
    if not (request.rules.delete or request.rules.rename or opened.facts.folds_case):
        opened.list_only(frozenset(members))
    return endpoints


def _open_file(opener: _Opener, store: Store, target: Location) -> Endpoints:
    """Open the folders around one file at the source and at the target."""
    request, source = opener.request, opener.request.source
    if request.rules.rename:
        raise _one_file_renamed(request)
    name = source.name if target.slash else target.name
    opened, above = opener.open_target(target if target.slash else target.parent)
    reason = name_problem(name, opened.facts)
    if reason:
        raise RefusedError(
            "unsafe-name",
            f"the target does not support the name {printable(name)}: {reason}",
            subject=target.text,
            hint="Choose another name. Nothing was moved.",
        )
    if _leads_to_folder(opener, target.child(name) if target.slash else target, opened.stat(name)):
        raise UsageError(
            "is-a-folder",
            "a folder with that name already exists",
            subject=target.text,
            hint=f"To put the file into it: {target.text}/",
        )
    if request.rules.delete:
        raise UsageError("delete-one-file", "--delete cannot be used with a single file", subject=source.text)
    folder = opener.register(opener.parent(store, source))
    single = SingleSource(folder, source.name, name)
    return Endpoints(request, store, single, opened, above is not None, opener.stack)


def _check_removable(opener: _Opener, store: Store, found: Entry) -> None:
    """Raise `RefusedError` if the source, or one of several, is protected or read-only, or contains a protected folder."""
    source, members = opener.request.source, opener.request.members
    if members is None:
        check_named(source)
        with closing(opener.parent(store, source)) as above:
            _check_one_removable(opener.request, source, found, above)
        return
    for path in members.paths.values():
        location, entry = source.child(path), store.stat(path)
        if entry is not None:
            check_named(location)
            with ExitStack() as stack:
                nested = b"/" in path
                above = stack.enter_context(closing(opener.open(location.parent))) if nested else store
                _check_one_removable(opener.request, location, entry, above)


def _check_one_removable(request: Request, location: Location, found: Entry, above: Store) -> None:
    if found.kind is Kind.FOLDER:
        check_unprotected(location, above, request.sites)
    check_read_only_roots(location, above.root_path.rstrip(b"/") + b"/" + location.name, above)


def _leads_to_folder(opener: _Opener, target: Location, existing: Entry | None) -> bool:
    """Return whether the target is a folder, or a symlink that leads to one."""
    if existing is None or existing.kind is not Kind.LINK:
        return existing is not None and existing.kind is Kind.FOLDER
    with closing(opener.open(replace(target, confined=False))) as store:
        found = store.stat()
    return found is not None and found.kind is Kind.FOLDER


def _known_roots(request: Request, target: Store) -> KnownRoots | None:
    """Return the recorded roots of the schedule; None without a schedule, or if the target's root cannot be recognised."""
    schedule = scheduled_by().get("schedule")
    if schedule is None or request.operation not in _TYPED or not target.can(Store.root_identity):
        return None
    return KnownRoots(schedule)


def remember_root(endpoints: Endpoints) -> None:
    """Remember the target's root for the next run of the schedule."""
    known = _known_roots(endpoints.request, endpoints.target)
    if known is not None:
        known.remember(endpoints.request.target, endpoints.target)


def check_facts(request: Request, source: Facts, target: Facts) -> None:
    """Raise `RefusedError` for a read-only target, and for deletions with a possibly incomplete listing."""
    if not target.writable:
        raise RefusedError("read-only-site", "this site can only be read", subject=request.target.text)
    if request.rules.delete and not source.complete:
        raise RefusedError(
            "listing-unproven",
            "the listing of the source may be incomplete, so --delete could remove files that still exist there",
            subject=request.source.text,
            hint="Leave out --delete.",
        )


def check_fidelity(rules: Rules, source: Facts, target: Facts, subjects: tuple[str, str]) -> None:
    """Raise `RefusedError` if an endpoint cannot keep permissions, attributes or hard links."""
    for facts, subject in zip((source, target), subjects, strict=True):
        if rules.modes == "keep" and not facts.modes:
            raise RefusedError(
                "cannot-keep-modes",
                "this endpoint does not support permissions",
                subject=subject,
                hint="Leave out --modes keep. Nothing was changed.",
            )
    if rules.keep_empty_folders and not (target.folders or target.folder_markers):
        raise RefusedError(
            "cannot-keep-empty-folders",
            "this endpoint cannot store empty folders",
            subject=subjects[1],
            hint="Leave out --keep-empty-folders; their number is then reported. Nothing was changed.",
        )
    for facts, subject in zip((source, target), subjects, strict=True):
        if rules.xattrs and not facts.attributes:
            raise _no_attributes(subject)
        if rules.hard_links and not facts.hard_links:
            raise RefusedError(
                "cannot-keep-hard-links",
                "this endpoint does not support hard links",
                subject=subject,
                hint="Leave out --hard-links; each name then becomes a separate file. Nothing was changed.",
            )


def _request_attributes(request: Request, target: Store, stores: Iterable[Store]) -> None:
    """Request attributes in all listings.

    Raises `RefusedError` if one filesystem has none, because those of the other would be lost.
    """
    for store in stores:
        if not store.include_attributes():
            raise _no_attributes((request.target if store is target else request.source).text)


def _no_attributes(subject: str) -> RefusedError:
    return RefusedError(
        "cannot-keep-attributes",
        "this endpoint does not support extended attributes",
        subject=subject,
        hint="Leave out --xattrs. Nothing was changed.",
    )


def check_backup(backup: Location, target: Location, store: Store) -> None:
    """Raise `UsageError` for a backup at another site, or with a path that overlaps with the target's."""
    check_writable(backup)
    if not store.can(Store.back_up):
        raise UsageError("cannot-keep", "this kind of site does not support backups", subject=target.text)
    if (backup.site.name, backup.bucket) != (target.site.name, target.bucket):
        raise UsageError(
            "backup-elsewhere",
            "the backup has to be at the target's site",
            subject=backup.text,
            hint="Backups are moved, not copied. Name a folder at the target's site.",
        )
    # a bucket's own root is an empty key
    if path_relation(b"/" + backup.raw, b"/" + target.raw) is not None:
        raise UsageError("backup-overlaps", "the backup folder overlaps with the target", subject=backup.text)


def _check_backup_overlap(endpoints: Endpoints, backup: Location) -> None:
    """Raise `RefusedError` if the backup is in the target or the source, after resolving symlinks."""
    target = endpoints.target
    if target.can(Store.identify):
        folders = [one for one in target.identify([backup.raw]) if one is not None]
        others = [*_identities(endpoints, target), *_identities(endpoints, endpoints.root)]
        check_backup_apart(folders, others, backup)


def check_overlap(endpoints: Endpoints) -> None:
    """Raise `RefusedError` if source and target overlap (S20); files chosen by name are exempt, several sources checked before."""
    request, single = endpoints.request, endpoints.single
    if request.chosen is not None or request.members is not None:
        return
    source_identities, target_identities = (
        _identities(endpoints, endpoints.root),
        _identities(endpoints, endpoints.target),
    )
    if single is None:
        check_apart(source_identities, target_identities, request.target, any_name=request.move)
    elif single.store.files_apart:
        name, folds = single.shown, endpoints.target.facts.folds_case
        above = _identities(endpoints, single.store)
        check_another_file((above, single.name), (target_identities, name), request.target, folds=folds)
        check_real_file(source_identities, (target_identities, name), request.target)


def _check_members_apart(endpoints: Endpoints, found: Mapping[bytes, Entry]) -> None:
    """Raise `RefusedError` if one of several sources overlaps with the target, as one alone would; `found` is by the name there."""
    there, target = _identities(endpoints, endpoints.target), endpoints.request.target
    folders = {name: entry.path for name, entry in found.items() if entry.kind is Kind.FOLDER}
    above = {name: entry.path.rpartition(b"/")[0] for name, entry in found.items() if name not in folders}
    known = _identities_below(endpoints, {*folders.values(), *above.values()})
    for path in folders.values():
        check_apart(known[path], there, target, any_name=endpoints.request.move)
    folds = endpoints.target.facts.folds_case
    if endpoints.request.rules.rename:  # a file's new name could be that of another one of them
        for folder in above.values():
            check_apart(known[folder], there, target, allows_inside=True)
        return
    for name, folder in above.items():
        file = known[folder], found[name].path.rpartition(b"/")[2]
        check_another_file(file, (there, name), target, folds=folds)


def _identities_below(endpoints: Endpoints, paths: Iterable[bytes]) -> dict[bytes, list[Identity]]:
    """Return the identities of paths below the source's root."""
    root, ordered = endpoints.root, sorted(paths)
    around = _identities(endpoints, root)
    if not root.can(Store.identify) or not around:
        return {path: [child(each, path) if path else each for each in around] for path in ordered}
    full = [root.root_path.rstrip(b"/") + b"/" + path for path in ordered]
    batches = (full[start : start + _IDENTIFIED] for start in range(0, len(full), _IDENTIFIED))
    identities = chain.from_iterable(map(root.identify, batches))
    return {path: [] if each is None else [each] for path, each in zip(ordered, identities, strict=True)}


def _identities(endpoints: Endpoints, store: Store) -> list[Identity]:
    """Return the identities to compare.

    Folders of hosts and paths of services are never the same, except for a collection that shows a folder.
    """
    sites = endpoints.request.source.site, endpoints.request.target.site
    site = sites[store is endpoints.target]
    found = identity_at(site, store.root_path) if all(one.globus is not None for one in sites) else []
    if endpoints.root.can(Store.identify) is endpoints.target.can(Store.identify):
        found += store.identities()
    return found


def _check_direct(source: Location, target: Location) -> None:
    """Raise `UsageError` if direct transfers between the two are impossible."""
    for location in (source, target):
        if location.site.kind != "ssh":
            raise UsageError(
                "direct-kind",
                "--direct needs two ssh sites, but this is not one",
                subject=location.text,
                hint="Name two ssh sites, or leave out --direct: the data then passes through this machine.",
            )


def _check_within_site(endpoints: Endpoints) -> None:
    """Raise `RefusedError` if the site cannot copy files without sending them through this machine."""
    request = endpoints.request
    if request.direct:
        able = all(isinstance(store, PosixStore) for store in (endpoints.origin.store, endpoints.target))
    else:
        by_globus = request.source.site.kind == "globus"
        here = request.source.site.kind == "local"
        able = here or by_globus or endpoints.target.copies(endpoints.origin.store)
    if not able:
        line = shlex.join(["hibali", "sync", request.source.text, request.target.text])
        raise RefusedError(
            "cannot-copy-at-site",
            "this site cannot copy these files itself",
            subject=request.source.text,
            hint=f"To copy them through this machine: {line}",
        )
