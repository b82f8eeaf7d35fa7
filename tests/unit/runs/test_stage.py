"""Test staging each input once per site."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hibali.config.model import local_site
from hibali.errors import IncompleteError, TryLaterError
from hibali.events import Listener, Moved, Retried
from hibali.locations import Location, parse_location
from runs.identity import identify_local
from runs.stage import Cache
from transfers.model.entry import Entry
from transfers.model.rules import Rules
from transfers.remote.host import RemoteHost
from transfers.stores.open_store import open_host


def old(path: Path, content: str) -> Path:
    """Create a file that has not changed recently."""
    path.write_text(content)
    return path


@pytest.fixture
def host(hibali_home: object) -> Iterator[RemoteHost]:
    del hibali_home
    opened = open_host(local_site())
    yield opened
    opened.close()


class CopyMover:
    """Copy files as `synchronise` does, and count them."""

    def __init__(self) -> None:
        self.carried = 0
        self.damage = b""

    def copy(self, source: Location, target: Location, on_event: Listener, rules: Rules) -> None:
        del rules
        self.carried += 1
        content = Path(source.path).read_bytes() + self.damage
        Path(target.path).write_bytes(content)
        on_event(Moved(target.name, "file", len(content), None, "size", 0))

    def entries(self, location: Location) -> list[Entry]:
        raise AssertionError(location)


def place(path: Path) -> Location:
    found = parse_location(str(path), {}, b"/")
    assert found is not None
    return found


def test_a_cached_input_is_transferred_again_only_if_it_was_modified(
    host: RemoteHost, tmp_path: Path
) -> None:
    source = old(tmp_path / "input", "content")
    identity = identify_local(source)
    carrier = CopyMover()
    cache = Cache(
        host, "here", bytes(tmp_path / "work"), lambda path: place(Path(os.fsdecode(path))), carrier
    )
    path = Path(os.fsdecode(cache.stage(identity, place(source))))
    assert path.read_text() == "content"
    assert path.name == identity.digest
    cache.stage(identity, place(source))
    assert carrier.carried == 1
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    path.write_text("CONTENT")
    os.utime(path, ns=times)  # same size, same mtime
    cache.stage(identity, place(source))
    assert carrier.carried == 2
    assert path.read_text() == "content"


def test_a_second_process_waits_for_the_first(host: RemoteHost, tmp_path: Path) -> None:
    """Several runs that start at once stage the same input."""

    class Held(CopyMover):
        def copy(self, source: Location, target: Location, on_event: Listener, rules: Rules) -> None:
            if self.carried == 0:
                self.carried += 1
                raise TryLaterError("locked", "the target is held by stage", transient=False)
            super().copy(source, target, on_event, rules)

    source = old(tmp_path / "input", "content")
    carrier = Held()
    cache = Cache(
        host, "here", bytes(tmp_path / "work"), lambda path: place(Path(os.fsdecode(path))), carrier
    )
    events: list[object] = []
    path = cache.stage_with_retries(identify_local(source), place(source), events.append)
    assert Path(os.fsdecode(path)).read_text() == "content"
    assert [event.reason for event in events if isinstance(event, Retried)] == ["the target is held by stage"]


def test_an_input_that_changed_during_staging_is_rejected(host: RemoteHost, tmp_path: Path) -> None:
    source = old(tmp_path / "input", "content")
    carrier = CopyMover()
    carrier.damage = b"!"
    cache = Cache(
        host, "here", bytes(tmp_path / "work"), lambda path: place(Path(os.fsdecode(path))), carrier
    )
    with pytest.raises(IncompleteError):
        cache.stage(identify_local(source), place(source))
