"""What is known of an operation under way, folded from its events: how much, how fast, how long still."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from rich.cells import cell_len
from rich.console import ConsoleOptions, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hibali.amounts import size_words, time_words
from hibali.events import (
    Adjusted,
    Carried,
    Carrying,
    Connected,
    Deleted,
    Ended,
    Event,
    Failed,
    Grown,
    Hashing,
    Linked,
    Listing,
    Moved,
    Noted,
    Packed,
    Planned,
    Recorded,
    Retried,
    Round,
    Unverified,
)
from hibali.text import path_fields, printable
from hibali_cli import output
from hibali_cli.display import Drawing, plain_line, shortened
from hibali_cli.options import Common
from hibali_cli.output import can_be_drawn_on, is_terminal, write_aside
from hibali_cli.records import event_fields

_RATE_SECONDS = 15.0  # the speed that is told is the mean of so long
_SAMPLE_SECONDS = 0.5
_FILLING_SECONDS = 1.0  # what goes at first fills windows and says nothing of the line
_TRUSTED_SECONDS = 2.0  # a speed measured for less says nothing of the time that is left
_RETRY_SHOWN_SECONDS = 5.0
_CURRENT_KEPT = 64

WAITING, LISTING, MOVING, HASHING = "waiting", "listing", "moving", "hashing"


class Tally:
    """Numbers of one operation; every moment is given, in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self.phase = WAITING
        self.files = self.files_to_do = 0
        self.bytes_to_do = 0
        self.deleted = self.to_delete = 0
        self.failed = self.retries = 0
        self._gone_on_with: set[bytes] = set()
        self._planned = False
        self.current: dict[bytes, Carrying] = {}  # large files under way, the latest last
        self._carried = self._begun = 0
        self._places: dict[str, Connected] = {}
        self._retried: tuple[float, Retried] | None = None
        self._began: float | None = None
        self._samples: deque[tuple[float, int]] = deque()

    def take(self, event: Event, now: float) -> None:
        """Fold one event in."""
        match event:
            case Listing():
                self._begin(LISTING, 0, 0)
            case Planned():
                self._begin(MOVING, event.files_to_move, event.bytes_to_move)
                self._planned = True
                self.to_delete = event.files_to_delete
            case Hashing():
                self._begin(HASHING, event.files, event.bytes)
            case Ended():
                self.phase = WAITING
            case Connected():
                self._places[event.about] = event
            case Retried():
                self.retries += 1
                self._retried = (now + max(event.wait_seconds, _RETRY_SHOWN_SECONDS), event)
            case _:
                self._take_progress(event, now)

    def _begin(self, phase: str, files: int, size: int) -> None:
        self.phase = phase
        self.files = self.deleted = self.to_delete = self.failed = self._carried = self._begun = 0
        self.files_to_do, self.bytes_to_do = files, size
        self.current.clear()
        self._gone_on_with.clear()
        self._began = None
        self._samples.clear()

    def _take_progress(self, event: Event, now: float) -> None:
        match event:
            case Carried():
                self._carried += event.bytes
                self.files += self.phase == HASHING
                self._sample(now)
            case Carrying():
                self._take_large(event)
            case Moved(kind="file" | "link"):
                self.files += 1
                self.current.pop(event.path, None)
            case Deleted(kind="file" | "link" | "special"):
                self.deleted += 1
            case Failed():
                self.failed += 1
                self.current.pop(event.path, None)
            case _:
                pass

    def _take_large(self, event: Carrying) -> None:
        """What left last may be told after the file has landed, so a whole one is not under way."""
        if event.begun and event.path not in self._gone_on_with:
            self._gone_on_with.add(event.path)
            self._begun += event.begun
        self.current.pop(event.path, None)
        if event.bytes < event.size:
            self.current[event.path] = event
        if len(self.current) > _CURRENT_KEPT:
            del self.current[next(iter(self.current))]

    def _sample(self, now: float) -> None:
        self._began = self._began or now
        if now - self._began < _FILLING_SECONDS:
            self._samples.clear()
        if not self._samples or now - self._samples[-1][0] >= _SAMPLE_SECONDS:
            self._samples.append((now, self._carried))
            while now - self._samples[0][0] > _RATE_SECONDS and len(self._samples) > 2:
                self._samples.popleft()

    @property
    def bytes(self) -> int:
        """How much of the bytes to do is done; what is sent once more does not count twice."""
        return min(self._carried + self._begun, self.bytes_to_do)

    @property
    def share(self) -> float:
        """What is done of it all, from 0 to 1: of the bytes, or of the files where they are empty."""
        done, all_of_it = (
            (self.bytes, self.bytes_to_do) if self.bytes_to_do else (self.files, self.files_to_do)
        )
        return min(1.0, done / all_of_it) if all_of_it else 1.0

    def rate(self, now: float) -> float | None:
        """Bytes a second of late; None while too little is known. It sinks while nothing comes."""
        if len(self._samples) < 2:
            return None
        began, before = self._samples[0]
        return (self._carried - before) / (now - began)

    def seconds_left(self, now: float) -> float | None:
        """How long the rest takes at this rate; None where nobody can tell."""
        rate = self.rate(now)
        if not rate or self.bytes >= self.bytes_to_do or now - self._samples[0][0] < _TRUSTED_SECONDS:
            return None
        return (self.bytes_to_do - self.bytes) / rate

    @property
    def lines(self) -> int:
        """Over how many lines data goes, where there are several."""
        return sum(place.lines for place in self._places.values())

    @property
    def logins(self) -> int:
        """How many logins were made for them."""
        return sum(place.logins for place in self._places.values())

    def retrying(self, now: float) -> Retried | None:
        """What is being tried again just now."""
        return self._retried[1] if self._retried is not None and now < self._retried[0] else None

    def facts(self, now: float) -> list[str]:
        """The same in words, the most wanted first."""
        if self.phase == LISTING:
            return ["looking at what is there"]
        rate, left = self.rate(now), self.seconds_left(now)
        facts = [f"{size_words(self.bytes)} of {size_words(self.bytes_to_do)}"]
        facts += [f"{size_words(int(rate))}/s"] if rate is not None else []
        facts += [f"{time_words(left)} left"] if left is not None else []
        facts.append(f"{self.files:,} of {self.files_to_do:,} files")
        facts += [f"{self.failed:,} failed"] if self.failed else []
        facts += [f"{self.deleted:,} of {self.to_delete:,} deleted"] if self.deleted else []
        facts += [f"{self.lines} lines"] if self.lines else []
        facts += [f"{self.logins} logins"] if self.lines and self.logins > 1 else []
        facts += [f"{self.retries} {'retry' if self.retries == 1 else 'retries'}"] if self.retries else []
        return facts

    def to_record(self, now: float) -> dict[str, Any]:
        """The fields of a JSON line of kind `progress`."""
        rate, left = self.rate(now), self.seconds_left(now)
        return {
            "phase": self.phase,
            "files": self.files,
            "files_to_do": self.files_to_do,
            "bytes": self.bytes,
            "bytes_to_do": self.bytes_to_do,
            "bytes_per_second": None if rate is None else int(rate),
            "seconds_left": None if left is None else round(left),
            "files_deleted": self.deleted,
            "files_failed": self.failed,
            "retries": self.retries,
            "lines": self.lines or None,
            "current": [
                {**path_fields(one.path), "bytes": one.bytes, "size": one.size}
                for one in list(self.current.values())[-8:]
            ],
        }

    def safe(self) -> str:
        """What an interruption leaves at the target, for people; names in it are not escaped."""
        if not self._planned:
            return "Nothing was changed at the target."
        done = f"at least {self.files:,} of {self.files_to_do:,} files stand at the target, proven"
        deleted = f", and {self.deleted:,} of {self.to_delete:,} are deleted" if self.deleted else ""
        large = [path.decode("utf-8", "surrogateescape") for path in self.current][-1:]
        kept = f" What came of {large[0]} is kept, too." if large else ""
        return f"Safe: {done}{deleted}; no other name there is half written.{kept}"


_A_SECOND = 4
_FILES_SHOWN = 4
_BAR_COLUMNS = 60  # a longer one says no more
_GAP = "  "


class Picture:
    """What stands at the foot of the terminal while an operation is under way; safe to call from any thread."""

    def __init__(self, title: str, tally: Tally, *, ends_at_plan: bool) -> None:
        """`ends_at_plan` puts it away for good once there is a plan: what comes then is a result."""
        self._title = printable(title)
        self._tally = tally
        self._guard = threading.Lock()  # around the tally, never around what draws
        self._ends_at_plan = ends_at_plan
        self._drawing = Drawing(self._drawn, _A_SECOND)

    def show(self, event: Event) -> None:
        """Take an event into the picture, which comes and goes with what there is to see."""
        with self._guard:
            self._tally.take(event, time.monotonic())
            phase = self._tally.phase
        if phase == WAITING or (self._ends_at_plan and phase != LISTING):
            self.put_away()
        else:
            self._drawing.put_up()

    def line(self, text: str) -> None:
        """Print a safe line above the picture."""
        self._drawing.line(text)

    def put_away(self) -> None:
        """Clear it, so that something else can be written there; the next event brings it back."""
        self._drawing.put_away()

    def _drawn(self, options: ConsoleOptions) -> list[RenderableType]:
        with self._guard:
            return self._lines(options, time.monotonic())

    def _lines(self, options: ConsoleOptions, now: float) -> list[RenderableType]:
        """As many as are worth it, none wider than the terminal."""
        width, tally = options.max_width - len("^C"), self._tally  # which the terminal adds by itself
        lines: list[RenderableType] = [plain_line(shortened(self._title, width, front=0.5), "bold")]
        if tally.phase == LISTING:
            return [*lines, plain_line(_fitting(tally.facts(now), width))]
        percent = f"{int(tally.share * 100):3d} %"
        bar = min(_BAR_COLUMNS, width - len(percent) - len(_GAP))
        if bar >= 10:
            lines.append(_bar(tally.share, percent, bar))
            lines.append(plain_line(_fitting(tally.facts(now), width)))
        else:
            lines.append(plain_line(_fitting([percent.strip(), *tally.facts(now)], width)))
        lines += [plain_line(text, "dim") for text in self._current(width)]
        retrying = tally.retrying(now)
        if retrying is not None:
            words = f"again {printable(retrying.about)}: {printable(retrying.reason)}"
            lines.append(plain_line(shortened(words, width, front=1.0), "yellow"))
        return lines

    def _current(self, width: int) -> list[str]:
        """The large files under way, each with how far it is, in columns."""
        texts = []
        for one in list(self._tally.current.values())[-_FILES_SHOWN:]:
            percent = f"{100 * one.bytes // max(1, one.size):3d} %"
            size = f"{size_words(one.bytes)} of {size_words(one.size)}"
            told = f"{percent}{_GAP}{size:<19}" if width >= 50 else percent
            room = width - len(told) - 2 * len(_GAP)
            if room < 8:
                return []
            name = shortened(printable(one.path), room)
            room = min(room, _BAR_COLUMNS)
            texts.append(f"{_GAP}{name}{' ' * (room - cell_len(name))}{_GAP}{told}".rstrip())
        return texts


@contextmanager
def picture(title: str, tally: Tally, *, ends_at_plan: bool) -> Iterator[Picture]:
    """Show it on stderr while inside; whatever else is written to the terminal comes first."""
    shown = Picture(title, tally, ends_at_plan=ends_at_plan)
    with output.after(shown.put_away):
        try:
            yield shown
        finally:
            shown.put_away()


def _bar(share: float, percent: str, width: int) -> RenderableType:
    drawn = Table.grid(padding=(0, len(_GAP), 0, 0))
    drawn.add_row(ProgressBar(total=1.0, completed=share, width=width), Text(percent))
    return drawn


def _fitting(facts: list[str], width: int) -> str:
    """As many of them as fit, the first ones first."""
    told = facts[0]
    for fact in facts[1:]:
        if cell_len(told) + len(_GAP) + cell_len(fact) <= width:
            told += _GAP + fact
    return shortened(told, width, front=1.0)


_LINE_SECONDS = 30.0
_RECORD_SECONDS = 10.0
_UNVERIFIED_NAMED = 100  # of what may be a whole archive


class Display(Protocol):
    """What a terminal shows of an operation under way."""

    def show(self, event: Event) -> None:
        """Take an event into the picture."""

    def line(self, text: str) -> None:
        """Print a safe line above the picture."""


class Telling:
    """A listener for the events of one operation, safe to call from any thread; `tally` knows how far it is."""

    def __init__(self, common: Common, display: Display, tally: Tally, pulse: Pulse | None) -> None:
        self.tally = tally
        self._common = common
        self._display = display
        self._pulse = pulse
        self._guard = threading.Lock()
        self._unverified = 0

    def __call__(self, event: Event) -> None:
        """Show it, print it and pass it on, as far as it was asked for."""
        with self._guard:
            self._display.show(event)
            if self._common.json:
                _tell_program(self._common, event)
            text = _words(self._common, event)
            if isinstance(event, Unverified):
                text = self._name_unverified(event)
            if text is not None:
                self._display.line(text)
            if self._pulse is not None:
                self._pulse.beat(self._display)

    def _name_unverified(self, event: Unverified) -> str | None:
        """The first ones, for people; programs get them all."""
        self._unverified += 1
        if self._unverified > _UNVERIFIED_NAMED + 1:
            return None
        if self._unverified > _UNVERIFIED_NAMED:
            return "unknown  and more files; all of them are named with --json"
        return f"unknown  {printable(event.path)}: {printable(event.message)}"


@contextmanager
def listening(
    common: Common, title: str, *, records: bool = False, ends_at_plan: bool = False
) -> Iterator[Telling]:
    """Show events as they come.

    Failures are always told, notes unless `--quiet`, everything with `--verbose`. With `--json` failures
    and notes, with `--verbose` all that is done, are JSON lines on stdout. Unless `--no-progress` or `--quiet`, progress is a
    picture on a terminal, which is put away when there is a plan if it `ends_at_plan`; elsewhere it is a line on
    stderr now and then, or with `--json` one on stdout, if `records` may come there.
    """
    tally = Tally()
    with _display(common, title, tally, ends_at_plan=ends_at_plan) as display:
        drawn = not isinstance(display, _Lines)
        pulse = None
        if common.progress and not ends_at_plan and (records if common.json else not drawn):
            pulse = Pulse(common, tally)
        yield Telling(common, display, tally, pulse)


class _Lines:
    """No picture: lines alone, on stderr."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def show(self, event: Event) -> None:
        """Only count."""
        self._tally.take(event, time.monotonic())

    def line(self, text: str) -> None:
        """Print it."""
        write_aside(text)


class Pulse:
    """Progress for logs and programs: a line when the last one is old."""

    def __init__(self, common: Common, tally: Tally) -> None:
        self._common = common
        self._tally = tally
        self._seconds = _RECORD_SECONDS if common.json else _LINE_SECONDS
        self._last = time.monotonic()

    def beat(self, display: Display) -> None:
        """Called at every event; nothing is told while nothing happens."""
        now, tally = time.monotonic(), self._tally
        if now - self._last < self._seconds or tally.phase in {WAITING, LISTING}:
            return
        self._last = now
        if self._common.json:
            self._common.output.record("progress", tally.to_record(now), flush=True)
        else:
            display.line(f"{tally.phase:<8} {', '.join(tally.facts(now))}")


def _display(
    common: Common, title: str, tally: Tally, *, ends_at_plan: bool
) -> AbstractContextManager[Display]:
    """A picture where it can be seen and does not stand between the lines of a program's."""
    seen = can_be_drawn_on(sys.stderr) and not (common.json and is_terminal(sys.stdout))
    if common.progress and seen:
        return picture(title, tally, ends_at_plan=ends_at_plan)
    return nullcontext(_Lines(tally))


def _words(common: Common, event: Event) -> str | None:
    """The line that people see of an event; None for one they did not ask for."""
    if isinstance(event, Failed):
        return f"failed   {printable(event.path)}: {printable(event.message)}"
    if common.output.quiet:
        return None
    if isinstance(event, Noted):
        return f"note     {printable(event.message)}"
    if isinstance(event, Round):
        failed = f", {event.files_failed} could not be sent so far" if event.files_failed else ""
        return (
            f"round    {event.number}: {event.files_moved} files and {event.bytes_moved} bytes moved,"
            f" {event.files_waiting} not finished yet{failed}"
        )
    return _details(event) if common.output.verbose else None


def _details(event: Event) -> str | None:
    match event:
        case Moved():
            return f"moved    {printable(event.path)}"
        case Adjusted():
            return f"adjusted {printable(event.path)}"
        case Recorded():
            return f"recorded {printable(event.path)}"
        case Grown():
            return f"grown    {printable(event.path)}: {event.bytes_added} bytes more, {event.size} in all"
        case Linked():
            return f"linked   {printable(event.path)}"
        case Packed():
            return f"packed   {printable(event.path)}: {event.members} in {event.size} bytes"
        case Deleted():
            return f"deleted  {printable(event.path)}"
        case Retried():
            reason = printable(event.reason)
            return f"again    {printable(event.about)} in {event.wait_seconds:.1f} s: {reason}"
        case Connected():
            return f"lines    {event.lines} to {printable(event.about)}, {event.logins} logins"
        case Hashing():
            return f"hashing  {event.files} files, {event.bytes} bytes"
        case Planned():
            return (
                f"plan     {event.files_to_move} of {event.files} files, {event.bytes_to_move} of {event.bytes}"
                f" bytes to move, {event.files_kept} kept, {event.files_to_delete} to delete"
            )
        case _:
            return None


def _tell_program(common: Common, event: Event) -> None:
    told = isinstance(event, Failed | Noted | Round | Unverified) or (
        common.output.verbose and not isinstance(event, Carried | Carrying | Listing | Ended)
    )
    if told:
        common.output.record(type(event).__name__.lower(), event_fields(event), flush=True)
