"""Show the cache of a site, and the entries that are evicted."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from hibali.amounts import format_size, read_duration, read_size
from hibali.config.model import Site
from hibali.config.settings import require_built
from hibali.errors import Exit, NotFoundError, UsageError
from hibali.locations import path_at
from hibali.text import counted, path_fields
from hibali.unreadable import UnreadableStateError, note_unreadable
from hibali_cli.cells import time_cell
from hibali_cli.fields import write_list
from hibali_cli.options import Common
from hibali_cli.output import Cell
from hibali_cli.progress import listening
from hibali_cli.records import moment
from hibali_plugins.eviction.listing import (
    CacheContents,
    CacheEntry,
    Evicted,
    EvictionResult,
    choose_entries,
    evict,
    list_entries,
)
from runs.cache import CacheRecords, times_at
from runs.clean import make_work_folder
from runs.model import Run
from runs.stage import Synchroniser
from runs.store import RunStore
from transfers.remote.host import RemoteHost
from transfers.stores.open_store import open_host

_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?[dhms])+")
_DAY_NS = 86_400 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class _Place:
    """The opened cache of a site with its entries."""

    site: Site
    host: RemoteHost
    work: bytes
    contents: CacheContents
    run_store: CacheRecords
    is_purged: bool

    def fields(self, kept: CacheEntry) -> dict[str, Any]:
        """Return the JSON fields of an entry."""
        path = self.work + b"/" + kept.name.path
        return {
            "site": self.site.name,
            "entry": kept.name.text,
            "type": "image" if kept.name.runtime else "input",
            **path_fields(path),
            "source": self.run_store.source_of(path) or None,
            "files": kept.files,
            "bytes": kept.bytes,
            "used": _moment(kept.used_ns),
            "held_by": list(kept.held_by),
            "purged": self.purged(kept),
        }

    def purged(self, kept: CacheEntry) -> str | None:
        """Return when the site's own purge deletes the first of its files, if it has one."""
        purge = self.site.purge
        if purge is None or kept.oldest_ns is None or not self.is_purged:
            return None
        return _moment(kept.oldest_ns + purge.days * _DAY_NS)


def list_cache(common: Common, name: str) -> int:
    """Show every entry."""
    with _opened(common, name, f"cache {name}") as place:
        kept = place.contents.entries
        if write_list(common, "cached", map(place.fields, kept)):
            return int(Exit.DONE)
        headings = ["entry", "size", "files", "used", "held by", "from"]
        rows: list[list[Cell]] = [
            [
                each.name.text[:-52],
                format_size(each.bytes),
                each.files,
                time_cell(_moment(each.used_ns)),
                " ".join(each.held_by) or None,
                place.run_store.source_of(place.work + b"/" + each.name.path) or None,
            ]
            for each in kept
        ]
        if place.is_purged:
            headings.insert(4, "purged")
            for row, each in zip(rows, kept, strict=True):
                row.insert(4, place.purged(each))
        common.output.table(headings, rows)
        held = sum(bool(each.held_by) for each in kept)
        total = sum(each.bytes for each in kept)
        common.output.info(
            f"{name}: {counted(len(kept), 'entry', 'entries')}, {format_size(total)}; {held} in use by runs."
        )
        return int(Exit.DONE)


def evict_cache(common: Common, name: str, keep: str | None, *, dry_run: bool) -> int:
    """Evict entries, or only show them; exit 6 where one could not be evicted."""
    limits = _read_limit(keep)
    with _opened(common, name, f"evict {name}") as place:
        chosen = choose_entries(place.contents, **limits)
        done: list[Evicted] = []

        def on_evicted(each: Evicted) -> None:
            done.append(each)
            fields = {"fate": str(each.result), "because": each.because}
            if common.json:
                common.output.record("evicted", {**place.fields(each.entry), **fields}, flush=True)
            else:
                line = f"{each.result:<8}{each.entry.name.text}  {format_size(each.entry.bytes)}"
                common.output.line(f"{line}  ({each.because})" if each.because else line)

        if dry_run:
            for kept in chosen:
                on_evicted(Evicted(kept, EvictionResult.PLANNED))
        else:
            evict(place.host, place.work, place.contents, chosen, on_evicted)
        code = Exit.INCOMPLETE if any(each.result is EvictionResult.FAILED for each in done) else Exit.DONE
        if common.json:
            common.output.record("end", {"count": len(done), "exit": int(code)})
            return int(code)
        evicted = [
            each.entry for each in done if each.result in {EvictionResult.EVICTED, EvictionResult.PLANNED}
        ]
        verb = "would be evicted" if dry_run else "evicted"
        total = sum(each.bytes for each in evicted)
        common.output.info(
            f"{name}: {len(evicted)} of {counted(len(place.contents.entries), 'entry', 'entries')} ({format_size(total)}) {verb}."
        )
        return int(code)


@contextmanager
def _opened(common: Common, name: str, title: str) -> Iterator[_Place]:
    site = common.settings().site(name)
    require_built(site)
    with listening(common, title) as on_event:
        host = open_host(site, on_event=on_event)
        try:
            work = make_work_folder(host, site, b"cache")
            contents = list_entries(
                host, Synchroniser(), partial(path_at, site), work, _finder(), time.time_ns(), site.purge
            )
            times = times_at(host, site)
            is_purged = times is not None and times.covers(work)
            yield _Place(site, host, work, contents, CacheRecords(name), is_purged)
        finally:
            host.close()


def _finder() -> Callable[[str], Run | None]:
    run_store = RunStore()

    def find(run_id: str) -> Run | None:
        try:
            return run_store.load(run_id)
        except NotFoundError:
            return None
        except UnreadableStateError as problem:
            note_unreadable(problem)
            return None

    return find


def _read_limit(text: str | None) -> dict[str, Any]:
    """Parse `--keep`: a duration in lower case, else a size; raises `UsageError`."""
    if text is None:
        return {}
    try:
        if _DURATION.fullmatch(text):
            return {"keep_seconds": read_duration(text)}
        return {"keep_bytes": read_size(text)}
    except ValueError:
        raise UsageError(
            "bad-keep",
            f"{text!r} is neither a size such as 500G nor a duration such as 30d",
            subject="--keep",
        ) from None


def _moment(nanoseconds: int) -> str:
    found = moment(nanoseconds or 1)
    return (
        f"{found[:19]}Z" if found else ("9999-12-31T23:59:59Z" if nanoseconds > 0 else "0001-01-01T00:00:00Z")
    )
