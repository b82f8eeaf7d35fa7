"""Run one call of the API: its settings, its events, its cancellation and its errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypedDict

from hibali.amounts import check_duration
from hibali.cancellation import Cancellation, cancelled_by
from hibali.config.settings import Settings, load_sites
from hibali.errors import CancelledError, HibaliError, UsageError
from hibali.events import Ended, Event, Listener, ignore
from hibali.files import state_root
from hibali.locations import Location, read_location, read_target
from hibali.subprocesses import work_as_library
from hibali.system_errors import explain

Place = str | os.PathLike[str]


class CallOptions(TypedDict, total=False):
    """The options of every function that contacts sites.

    Attributes:
        config: another config.toml than HIBALI_CONFIG or that of the user's config folder.
        on_event: called with each event (`hibali.events`), from any thread. An exception that it raises ends the
            call and is raised by it.
        cancellation: cancels the call from another thread.
    """

    config: Place | None
    on_event: Callable[[Event], None] | None
    cancellation: Cancellation | None


_CALL_OPTIONS = frozenset(CallOptions.__annotations__)


class Watcher(Protocol):
    """What is told of every call in its context (`hibali.progress`)."""

    def __call__(self, event: Event) -> None:
        """Handle an event, which may come from any thread."""

    def show_run(self, run: Any) -> None:
        """Handle a change of the state of a run that is waited for."""


watching: ContextVar[Watcher | None] = ContextVar("watching", default=None)


@dataclass(frozen=True, slots=True)
class Call:
    """One call: the sites of its config.toml, the listener for its events, and the options of its function that were given."""

    settings: Settings
    on_event: Listener
    given: dict[str, Any]

    def location(self, place: Place) -> Location:
        """Return the location of a source. Raises what `hibali.locations.read_location` does."""
        return read_location(place_text(place), self.settings)

    def recorded(self, text: bytes) -> Location:
        """Return the location that hibali itself recorded, in which `$` is an ordinary character."""
        return read_location(os.fsdecode(text), self.settings, literal=True)

    def target(self, place: Place) -> Location:
        """Return the location of a target."""
        return read_target(place_text(place), self.settings)


def place_text(place: Place) -> str:
    """Return a place as text; a path object is a path of this machine, even with a colon in it."""
    if isinstance(place, str):
        return place
    path = os.fspath(place)
    return f"./{path}" if ":" in path.partition("/")[0] else path


@contextmanager
def calling(
    function: str, options: Mapping[str, Any], allowed: frozenset[str] = frozenset()
) -> Iterator[Call]:
    """Make one call; every error that leaves it is a `HibaliError`, unless it is a bug or the listener's.

    Args:
        function: its name in messages.
        options: `CallOptions`, and options of the function.
        allowed: the names of the latter; another one is a TypeError.
    """
    given_options = _split_options(function, options, allowed)
    work_as_library()
    own, given, config = Cancellation(), options.get("cancellation"), options.get("config")
    forget = given.on_cancel(own.cancel) if given is not None else _nothing
    listener = _Listener(_watched(options.get("on_event") or ignore), own)
    try:
        with cancelled_by(own):
            yield Call(load_sites(None if config is None else os.fspath(config)), listener, given_options)
    except CancelledError:
        if listener.failure is not None:
            raise listener.failure from None
        raise
    except HibaliError:
        raise
    except (OSError, RuntimeError) as problem:
        explained = explain(problem, state=state_root())
        if explained is None:
            raise
        raise explained from problem
    finally:
        forget()


def _watched(on_event: Callable[[Event], None]) -> Callable[[Event], None]:
    """Return a listener that tells the watcher of this context, too."""
    watcher = watching.get()
    if watcher is None or watcher is on_event:
        return on_event

    def tell(event: Event) -> None:
        watcher(event)
        on_event(event)

    return tell


class _Listener:
    """Pass events on; cancel the call where the caller's function fails."""

    def __init__(self, on_event: Callable[[Event], None], cancellation: Cancellation) -> None:
        self._on_event = on_event
        self._cancellation = cancellation
        self.failure: BaseException | None = None

    def __call__(self, event: Event) -> None:
        """Handle an event; raises `CancelledError` after a cancellation, which ends the operation in any thread."""
        if self._cancellation.cancelled and isinstance(event, Ended):  # the receipt must still be written
            return
        self._cancellation.check()
        try:
            self._on_event(event)
        except BaseException as problem:
            self.failure = self.failure or problem
            self._cancellation.cancel()
            raise


def _split_options(function: str, options: Mapping[str, Any], allowed: frozenset[str]) -> dict[str, Any]:
    """Return the options without those of every call. Raises TypeError for an unknown one, as Python does."""
    for name in options:
        if name not in allowed and name not in _CALL_OPTIONS:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
    return {name: value for name, value in options.items() if name not in _CALL_OPTIONS}


def _nothing() -> None:
    """Do nothing."""


def bounded(duration: timedelta, subject: str) -> timedelta:
    """Return a duration that is added to a time. Raises `UsageError` if it is longer than 100 years."""
    try:
        check_duration(abs(duration.total_seconds()))
    except ValueError as problem:
        raise UsageError("usage", str(problem), subject=subject) from None
    return duration
