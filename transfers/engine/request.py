"""Define the request of a transfer."""

from __future__ import annotations

import re
import shlex
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from hibali.config.kinds import kind_of
from hibali.config.model import Site
from hibali.config.settings import Settings
from hibali.errors import UsageError
from hibali.events import Failed
from hibali.locations import Location
from hibali.plugins import every
from hibali.text import nearest
from transfers.model.entry import Entry
from transfers.model.rules import Rules
from transfers.model.store import Store, StoreView

if TYPE_CHECKING:  # start-up: only for saved plans, and at the end
    from transfers.history.journal import Receipt
    from transfers.planning.plan_file import SavedPlan


@dataclass(frozen=True, slots=True)
class SaveOptions:
    """The options for committing changes in a dataset.

    Attributes:
        save: whether they are committed.
        push_to: siblings to push the commit to.
        message: the commit message, instead of one made from the receipt.
        also: further absolute names to commit.
    """

    save: bool = True
    push_to: tuple[str, ...] = ()
    message: str | None = None
    also: tuple[bytes, ...] = ()


class SavingView(StoreView):
    """A view of a place whose changes are committed at the end of a transfer."""

    @abstractmethod
    def receive(self, saving: SaveOptions) -> None:
        """Become the target: files without content count as missing. Raises what forbids to commit here."""

    @abstractmethod
    def save(self, receipt: Receipt, saving: SaveOptions) -> None:
        """Commit and push what is not committed yet. Raises `IncompleteError` with the command to repeat."""


class FeatureOption:
    """What an option of a feature changes in a transfer; `flag` is its name on the command line."""

    flag: ClassVar[str]

    def check(self, request: Request, *, single: bool) -> None:
        """Raise `UsageError` if the option cannot be used with the request; `single`: the source is one file."""

    def open_target(self, target: Store, subject: str) -> Store | None:
        """Return a view of the target that is written in its place, and closes it; None for no view."""


def feature_options(
    values: dict[str, Any], settings: Settings, ends: Sequence[Location]
) -> tuple[FeatureOption, ...]:
    """Make the options of features from their values by name, which are removed. Raises `UsageError`."""
    made = (make(values, settings, ends) for _, make in every("hibali.transfer_options"))
    return tuple(option for option in made if option is not None)


@dataclass(frozen=True, slots=True)
class TaskTimeouts:
    """The limits of tasks: seconds without progress (None: Globus decides); whether interruptions cancel."""

    give_up_after: float | None = None
    cancel_on_interrupt: bool = False


@dataclass(frozen=True, slots=True)
class Members:
    """Several sources that go side by side into the target.

    Attributes:
        text: the sources as they were given.
        paths: the path of each below one folder, by the name that it gets.
    """

    text: str
    paths: Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Request:
    """A transfer as requested.

    Attributes:
        operation: the name of the command.
        source: the location that is read.
        target: the location that is written.
        rules: the rules of selection, comparison and deletion.
        saved: a saved plan to execute exactly.
        backup: the folder for copies of files that are replaced or deleted.
        rate: the rate limit in bytes per second; 0 for the limits of the sites.
        recorded: whether recorded digests are used to compare files.
        direct: whether the source's site sends directly to the target's site.
        saving: the options for committing received files in a dataset.
        members: several sources, which are all in the folder `source`.
        chosen: the only files of the source to transfer, by the name that each gets at the target.
        via: `auto`, `own` for any way but Globus, `globus`, or `stream` for bytes that pass through this machine.
        within_site: whether the bytes must not pass through this machine, because both endpoints are at one site.
        exact: whether a name that appears at the target after the plan was made is a failure, never replaced.
        task_timeouts: the time limits after which a Globus task is cancelled.
        options: what features of hibali add to the transfer.
        workers: the most processes of this machine that move files; 0 for as many as its cores allow.
        accept_rot: whether source files are moved whose content is not as recorded, though nothing else of them changed.
        missing: what the caller knows to be missing at the source; each counts as a failure in the receipt.
        protect: called before anything changes with the files at the target whose content would become another one, and
            with the sha256 of each, "" if unknown; it raises `RefusedError` where that must not happen.
        move: whether entries are removed at the source once they are proven at the target; `rules.checksum` is set then.
        sites: all sites, whose roots are never emptied by that.
    """

    operation: str
    source: Location
    target: Location
    rules: Rules = field(default_factory=Rules)
    saved: SavedPlan | None = None
    backup: Location | None = None
    rate: int = 0
    recorded: bool = False
    direct: bool = False
    saving: SaveOptions = field(default_factory=SaveOptions)
    members: Members | None = None
    chosen: Mapping[bytes, Entry] | None = None
    via: str = "own"
    within_site: bool = False
    exact: bool = False
    task_timeouts: TaskTimeouts = field(default_factory=TaskTimeouts)
    options: tuple[FeatureOption, ...] = ()
    workers: int = 1
    accept_rot: bool = False
    missing: Sequence[Failed] = ()
    protect: Callable[[Mapping[bytes, str]], None] | None = None
    move: bool = False
    sites: tuple[Site, ...] = ()

    @property
    def source_text(self) -> str:
        """The source, or the sources, as given."""
        return self.source.text if self.members is None else self.members.text

    @property
    def lowest_rate(self) -> int:
        """The lowest limit in bytes per second, of the request and its sites; 0 for none."""
        return min((rate for rate in (self.rate, self._bandwidth) if rate), default=0)

    @property
    def lowest_setting(self) -> str:
        """The setting with the lowest limit: `bwlimit` or `bandwidth`."""
        return "bandwidth" if self.lowest_rate == self._bandwidth else "bwlimit"

    @property
    def reconnect_seconds(self) -> float:
        """The time in seconds to retry a lost connection: the lower limit of both sites."""
        return min(site.limits.reconnect_seconds for site in (self.source.site, self.target.site))

    @property
    def asked_workers(self) -> int:
        """The most workers that the caller asked for, or the lower limit of both sites; 0 if neither says a number."""
        limits = (self.source.site.limits.workers, self.target.site.limits.workers)
        return self.workers or min((limit for limit in limits if limit), default=0)

    @property
    def _bandwidth(self) -> int:
        both = (self.source.site.limits.bandwidth, self.target.site.limits.bandwidth)
        return min((rate for rate in both if rate), default=0)

    def paced(self, location: Location) -> Location:
        """Return the location with the lowest rate as its site's bandwidth."""
        limits = replace(location.site.limits, bandwidth=self.lowest_rate)
        return replace(location, site=replace(location.site, limits=limits))


def check_target_is_last(operation: str, places: Sequence[Location]) -> None:
    """Raise `UsageError` where the only place of a push at a site, or of a pull on this machine, is not the last one."""
    others = [each for each in places if each.typed_local is (operation == "pull")]
    if operation in {"push", "pull"} and len(others) == 1 and others != [places[-1]] and len(places) > 2:
        words = [each.text for each in (*(each for each in places if each is not others[0]), others[0])]
        raise UsageError(
            "wrong-direction",
            "the target is the last argument",
            subject=others[0].text,
            hint=f"Did you mean: {shlex.join(['hibali', operation, *words])}",
        )


def check_direction(operation: str, source: Location, target: Location, settings: Settings) -> None:
    """Raise `UsageError` where push does not go from here to a site, or pull not from a site to here."""
    found = source.typed_local, target.typed_local
    if found == {"push": (True, False), "pull": (False, True)}[operation]:
        return
    place = source if operation == "pull" else target
    name, _, rest = place.text.partition("/")
    if found == (True, True) and name in settings.sites:
        ends = (source.text, f"{name}:{rest}") if place is target else (f"{name}:{rest}", target.text)
        meant = f"{name} is a site: {shlex.join(['hibali', operation, *ends])}"
    else:
        command = {(True, False): "push", (False, True): "pull"}.get(found, "sync")
        similar = nearest(name, settings.sites) if found == (True, True) else None
        line = shlex.join(["hibali", command, source.text, target.text])
        meant = f"Did you mean {similar}:{rest}, or {line}?" if similar else f"Did you mean: {line}"
    way = "a local path to SITE:PATH" if operation == "push" else "SITE:PATH to a local path"
    raise UsageError("wrong-direction", f"{operation} copies from {way}", subject=place.text, hint=meant)


_FILE_TYPE = re.compile(r"[A-Z][A-Za-z0-9]*")


def typed_target(target: Location, file_type: str | None) -> Location:
    """Return the target with a type for new files. Raises `UsageError` for a site whose files have no types."""
    if file_type is None:
        return target
    with_file_type = kind_of(target.site).with_file_type
    if with_file_type is None:
        raise UsageError(
            "usage",
            f"--as-type needs a target at a CBRAIN portal; files of a site of kind {target.site.kind} have no types",
            subject=target.text,
        )
    if not _FILE_TYPE.fullmatch(file_type):
        raise UsageError("usage", f"{file_type!r} is not a type such as TextFile", subject="--as-type")
    return replace(target, site=with_file_type(target.site, file_type))
