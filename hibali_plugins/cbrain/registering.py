"""Write to the storage of a data provider with the store of another site, and register what was written.

Registration makes no second userfile of a name that was registered before. Portals register new names in the background: requests for
them are sent while files are written, and their results awaited at the end. A file counts as present here only if it is stored and registered with this size, so the next
transfer finishes an interrupted one. What is at the top of a provider is a userfile: a single file, or a folder as
a collection.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

from hibali.errors import HibaliError, RefusedError
from hibali.text import counted, printable
from hibali_plugins.cbrain.client import DELETED_AT_ONCE, REGISTERED_AT_ONCE
from hibali_plugins.cbrain.names import COLLECTION, LEGAL_TEXT, SINGLE_FILE, guess_type
from hibali_plugins.cbrain.portal import Portal
from hibali_plugins.cbrain.records import DataProvider, Userfile, is_collection_type
from transfers.model.entry import Entry, Kind
from transfers.model.facts import Facts
from transfers.model.store import Lock, Store, StoreView, problem_of
from transfers.model.units import Committed, Item, Payload, Problem, Unit

_TOP = re.compile(f"{LEGAL_TEXT}(/.+)?".encode(), re.DOTALL)
_BELOW = re.compile(rb".+", re.DOTALL)
_WHY = "names at the top of a data provider have letters, digits and some signs, without spaces"
_Entries = list[Entry]
_MOST_REASON = 200  # characters of a reason


@dataclass(slots=True)
class _Written:
    """What one `write` committed and is not registered yet: sizes of single files, and collections."""

    files: dict[str, int] = field(default_factory=dict)
    collections: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Begun:
    """Names that the portal registers in the background, with their types, and `plain`, the type for those that it does not take."""

    types: Mapping[str, str]
    plain: str
    activity: int | None


_Registrations = list[_Begun]
_Texts = list[str]


class RegisteringStore(StoreView):
    """A view of the files of a data provider in the store of another site."""

    def __init__(self, portal: Portal, files: Store, root: bytes) -> None:
        """`root` is the path at the portal: `@PROVIDER`, or one below it."""
        super().__init__(files)
        self._portal = portal
        first, _, inside = root.decode("utf-8", "surrogateescape").partition("/")
        self._provider: DataProvider = portal.provider(first[1:])
        self._inside = inside  # the path of the root below the provider
        self._registered: Mapping[str, Userfile] | None = None
        self._begun: list[_Begun] = []

    @property
    def facts(self) -> Facts:
        """The facts of the files, with the names that can be registered."""
        facts = self.store.facts
        accepts = (_BELOW, "") if self._inside else (_TOP, _WHY)
        return replace(
            facts,
            complete=False,
            accepts=accepts,
            hard_links=False,
            attributes=False,
            adjusts=False,
            links=False,
            globus=False,
            writable=facts.writable and not self._provider.read_only,
        )

    # What is present

    def _userfiles(self, *, fresh: bool = False) -> Mapping[str, Userfile]:
        if self._registered is None or fresh:
            self._registered = self._portal.listed(self._provider.id)
        return self._registered

    def _name_of(self, path: bytes) -> tuple[str, bool]:
        """Return the userfile that a path below the root belongs to, and whether it is inside that one."""
        text = path.decode("utf-8", "surrogateescape")
        whole = "/".join(part for part in (self._inside, text) if part)
        top, slash, _ = whole.partition("/")
        return top, bool(slash)

    def _is_registered(self, entry: Entry) -> bool:
        """Return whether an entry is registered, or inside a registered collection."""
        name, inside = self._name_of(entry.path)
        userfile = self._userfiles().get(name)
        if inside or entry.kind is Kind.FOLDER:
            return userfile is not None and userfile.is_collection
        # A file that was replaced without being registered again has another size.
        return userfile is not None and userfile.size in {None, entry.size}

    def stat(self, path: bytes = b"") -> Entry | None:
        """See Store."""
        found = self.store.stat(path)
        if found is None or not (path or self._inside):
            return found
        return found if self._is_registered(found._replace(path=path)) else None

    def list(self, *, shallow: bool = False) -> Iterator[Entry]:
        """See Store: only what is registered."""
        self._userfiles(fresh=True)
        for entry in self.store.list(shallow=shallow):
            if self._is_registered(entry):
                yield entry

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store."""
        return self.store.read(units)

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store."""
        return self.store.digest(entries)

    # Changing

    def begun(self, item: Item) -> int:
        """See Store."""
        return self.store.begun(item)

    def file_above(self) -> bool:
        """See Store."""
        return self.store.file_above()

    def make_root(self) -> None:
        """See Store."""
        self.store.make_root()

    def lock(self, operation: str, *, make: bool = False) -> Lock:
        """See Store."""
        return self.store.lock(operation, make=make)

    def write(self, payloads: Iterable[Payload]) -> Generator[Committed, None, None]:
        """See Store; registers single files in batches while others are written, and collections at the end.

        Raises:
            RefusedError: The portal did not register some names.
        """
        written = _Written()
        results = self.store.write(payloads)
        try:
            for committed in results:
                self._note(committed, written)
                if len(written.files) >= REGISTERED_AT_ONCE:
                    self._register_files(written)
                yield committed
        finally:
            results.close()
            self._registered = None
        self._register_files(written)
        self._register(
            {name: self._collection_type() for name in sorted(written.collections)}, COLLECTION, {}
        )
        self._finish_registration()

    def _note(self, committed: Committed, written: _Written) -> None:
        if committed.problem is not None:
            return
        name, inside = self._name_of(committed.item.entry.path)
        if inside or committed.item.entry.kind is Kind.FOLDER:
            written.collections.add(name)
        else:
            written.files[name] = committed.item.entry.size

    def _register_files(self, written: _Written) -> None:
        given = self._portal.settings.type
        types = {
            name: given if given and not is_collection_type(given) else guess_type(name)
            for name in written.files
        }
        self._register(types, SINGLE_FILE, written.files)
        written.files.clear()

    def _collection_type(self) -> str:
        given = self._portal.settings.type
        return given if given and is_collection_type(given) else COLLECTION

    def _register(self, types: Mapping[str, str], plain: str, sizes: Mapping[str, int]) -> None:
        """Begin to register names in batches."""
        client = self._portal.client
        coming = iter(types.items())
        while batch := dict(islice(coming, REGISTERED_AT_ONCE)):
            result = client.register(self._provider.id, batch, self._portal.group_id())
            found = {each.name for each in (*result.new, *result.known)}
            rest = {name: file_type for name, file_type in batch.items() if name not in found}
            if rest:
                self._begun.append(_Begun(rest, plain, result.activity))
            if result.known:
                # Their contents may be new: the portal would go on to use its copies and sizes of the old ones.
                client.mark_newer([each.id for each in result.known])
            for each in result.known:
                size = sizes.get(each.name, each.size)
                if size is not None and size != each.size:
                    client.resize_userfile(each.id, size)

    def _finish_registration(self) -> None:
        """Wait until all names are registered, those whose guessed type the portal does not have as plain ones.

        Raises:
            RefusedError: The portal did not register some names.
        """
        lacking, reasons = self._await_begun()
        if lacking and self._portal.settings.type is None:
            for each in lacking:
                self._register(dict.fromkeys(each.types, each.plain), each.plain, {})
            lacking, reasons = self._await_begun()
        if not lacking:
            return
        names = {name: file_type for each in lacking for name, file_type in each.types.items()}
        shown = ", ".join(f"{printable(name)} as {names[name]}" for name in islice(names, 3))
        why = "; ".join(printable(each)[:_MOST_REASON] for each in reasons[:3]) or (
            f"it lacks the type, or its data provider {self._provider.name} stores its files elsewhere"
        )
        raise RefusedError(
            "not-registered",
            f"the portal did not register {counted(len(names), 'name')} ({shown}): {why}",
            subject=f"{self._portal.site.name}:@{self._provider.name}",
            hint=f"To see where hibali writes them: hibali sites check {self._portal.site.name}",
        )

    def _await_begun(self) -> tuple[_Registrations, _Texts]:
        """Wait for what was begun; return what the portal did not register, and the reasons that it tells."""
        lacking: _Registrations = []
        reasons: _Texts = []
        begun, self._begun = self._begun, []
        for each in begun:
            messages = self._portal.await_activity(each.activity, partial(self._is_registered_all, each))
            rest = self._lacking(each)
            if rest:
                lacking.append(_Begun(rest, each.plain, None))
                reasons += [text for text in messages if not text.isdigit()]  # those of successes are ids
        return lacking, reasons

    def _is_registered_all(self, begun: _Begun) -> bool:
        return not self._lacking(begun)

    def _lacking(self, begun: _Begun) -> dict[str, str]:
        listed = self._portal.listed(self._provider.id)
        return {name: file_type for name, file_type in begun.types.items() if name not in listed}

    def remove(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store. The portal removes userfiles with their contents; single files of collections are removed here."""
        self._userfiles(fresh=True)
        coming = iter(entries)
        touched: set[str] = set()
        while batch := list(islice(coming, DELETED_AT_ONCE)):
            yield from self._remove_batch(batch, touched)
        for name in sorted(touched):
            self._drop_if_empty(name)
        self._registered = None

    def _remove_batch(self, batch: _Entries, touched: set[str]) -> Iterator[tuple[Entry, Problem | None]]:
        whole: dict[int, Entry] = {}
        for entry in batch:
            name, inside = self._name_of(entry.path)
            userfile = self._userfiles().get(name)
            if userfile is None or inside or entry.kind is Kind.FOLDER:
                touched.add(name)
                yield from self.store.remove([entry])
                continue
            problem = self._changed(entry)
            if problem is not None:
                yield entry, problem
            else:
                whole[userfile.id] = entry
        if not whole:
            return
        deleted = self._portal.delete_all(self._provider.id, list(whole))
        for number, entry in whole.items():
            yield entry, None if number in deleted else _NOT_REMOVED

    def _changed(self, entry: Entry) -> Problem | None:
        """Return a problem if the stored file is not the listed one."""
        try:
            now = self.store.stat(entry.path)
        except HibaliError as problem:
            return problem_of(problem, denied=True)
        if now is None or (now.size, now.mtime_ns, now.etag) == (entry.size, entry.mtime_ns, entry.etag):
            return None
        return Problem("changed", "it changed after it was listed, so it was not removed")

    def _drop_if_empty(self, name: str) -> None:
        """Delete the userfile of a collection without files, and mark another one as changed."""
        userfile = self._userfiles().get(name)
        if userfile is None:
            return
        if not self._inside and self.store.stat(name.encode("utf-8", "surrogateescape")) is None:
            self._portal.delete(userfile)
        else:
            self._portal.client.mark_newer([userfile.id])

    def check_no_locks(self, *, itself: bool) -> None:
        """See Store."""
        self.store.check_no_locks(itself=itself)

    def remove_own_files(self) -> Sequence[tuple[bytes, Problem]]:
        """See Store."""
        return self.store.remove_own_files()

    def remove_root(self) -> Problem | None:
        """See Store; a collection is removed at the portal, too."""
        problem = self.store.remove_root()
        userfile = self._userfiles(fresh=True).get(self._inside)
        if problem is None and userfile is not None:
            self._portal.delete(userfile)
        return problem

    def close(self) -> None:
        """See Store."""
        try:
            self.store.close()
        finally:
            self._portal.client.close()


_NOT_REMOVED = Problem("not-removed", "the portal did not delete it")
