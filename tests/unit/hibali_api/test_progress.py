"""Test the line that `hibali.progress` draws on a terminal, and the output that it updates in a notebook."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

import hibali as api
from hibali.events import Carried, Carrying, Ended, Event, Failed, Hashing, Listing, Moved, Planned, Retried
from hibali_api import progress as module
from hibali_api.calls import calling, watching
from runs.model import RunStatus, State

PLANNED = Planned(5, 4000, 4, 4000, 1, 0)
MOVED = Moved(b"a", "file", 1000, None, "digest", 0)


class Terminal(io.StringIO):
    """Standard error that is a terminal."""

    def isatty(self) -> bool:
        return True

    def drawn(self) -> list[str]:
        """Return what was drawn, each time on a cleared line, since the last call."""
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text.split("\r\x1b[2K")[1:]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Let standard error be a terminal, and draw every event."""
    made = Terminal()
    monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=made, modules={}))
    monkeypatch.setattr(module, "_SECONDS", 0)
    monkeypatch.setenv("COLUMNS", "200")
    return made


def show(*events: Event) -> None:
    with api.progress("scans") as progress:
        for event in events:
            progress(event)


def test_bytes_files_and_failures_are_drawn_and_removed(terminal: Terminal) -> None:
    failed = Failed(b"x", "unreadable", "denied")
    show(Listing(), PLANNED, Carried(2000), MOVED, failed, Ended())
    shown = terminal.drawn()
    assert shown[0] == "scans  listing files"
    assert shown[4].startswith(" 50 %  scans  2.0 kB of 4.0 kB  1 of 4 files  1 failed"), shown
    assert shown[5:] == ["", ""]


def test_resumed_and_repeated_bytes_do_not_lead_beyond_the_end(terminal: Terminal) -> None:
    large = Carrying(b"a", 3000, 3500, 4000)
    show(PLANNED, large, large, Carried(1000), Carried(1000))
    assert terminal.drawn()[-2].startswith("100 %")
    show(Hashing(3, 0), Carried(0))
    assert terminal.drawn()[-2].startswith(" 33 %")


def test_a_hostile_reason_cannot_move_the_cursor(terminal: Terminal) -> None:
    show(PLANNED, Retried("juwels", 1, 2.0, "\x1b[2J"))
    assert "\x1b" not in "".join(terminal.drawn())


def test_events_may_come_from_any_thread(terminal: Terminal) -> None:
    with api.progress() as progress:
        progress(PLANNED)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(progress, [Carried(10)] * 200))
    assert terminal.drawn()[-2].startswith(" 50 %  2.0 kB of 4.0 kB")


def test_the_tasks_of_a_run_are_drawn_until_it_ends(terminal: Terminal) -> None:
    states = [State.SUCCEEDED, State.FAILED, State.RUNNING]
    tasks = {number: RunStatus(state) for number, state in enumerate(states, 1)}
    run: Any = SimpleNamespace(pipeline="bet@1.0", state=State.RUNNING, tasks=tasks)
    with api.progress() as progress:
        progress.show_run(run)
        assert terminal.drawn() == [" 66 %  bet@1.0 running  2 of 3 tasks ended"]
        progress.show_run(SimpleNamespace(**{**vars(run), "tasks": {}, "state": State.SUCCEEDED}))  # type: ignore[arg-type]
        assert terminal.drawn() == [""]


def test_calls_in_the_block_are_shown_and_exceptions_pass_through(terminal: Terminal) -> None:
    own: list[Event] = []

    def fail() -> None:
        with api.progress("outer"), calling("push", {"on_event": own.append}) as call:
            call.on_event(Listing())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert terminal.drawn() == ["outer  listing files", ""]
    assert own == [Listing()]
    assert watching.get() is None
    with calling("push", {"on_event": own.append}) as call:
        call.on_event(Listing())
    assert terminal.drawn() == []


def test_nothing_is_drawn_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    show(Listing(), PLANNED, Carried(1), MOVED, Ended())
    assert capsys.readouterr().err == ""
