"""Check a site without leaving files behind, abort stale uploads, and tune the connection."""

from __future__ import annotations

import hashlib
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace

from hibali.config.kinds import kind_of
from hibali.config.model import Site, SshSettings
from hibali.errors import AccessError, HibaliError, IncompleteError, NotFoundError, UsageError
from hibali.events import Listener, ignore
from hibali.locations import Location, check_writable, root_location
from hibali.plugins import load
from hibali.ssh.gsi import format_time_left, ready_proxy, seconds_left
from hibali.ssh.sessions import Login
from transfers.engine.routes.stream import StreamRoute
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.store import Source
from transfers.model.units import PACK_BYTES, Committed, Item, Leftover, Payload, Problem, Unit
from transfers.pipeline.batches import group_units
from transfers.pipeline.channel_pool import count_channels
from transfers.remote.agent_host import AgentHost
from transfers.remote.host import RemoteHost
from transfers.stores import ssh
from transfers.stores.agent_or_sftp import forget, open_either, sftp_host
from transfers.stores.agent_store import AGENT_FACTS, PosixStore
from transfers.stores.sftp.client import Client


def clean_site(
    site: Site, *, older_than: float, everybody: bool, dry: bool, on_event: Listener = ignore
) -> Iterator[Leftover]:
    """Abort uploads that are older than `older_than` seconds, and yield each; with `dry`, only yield them.

    Without `everybody`, only uploads that this machine started. Raises `UsageError` for a site without such
    uploads: in a folder, the next push removes what an interrupted push left.
    """
    module = load("transfers.stores", site.kind)
    if not hasattr(module, "clean"):
        raise UsageError(
            "nothing-to-clean",
            f"a site of kind {site.kind} has no uploads to abort",
            subject=site.name,
            hint="The next push to a folder removes the leftovers of an interrupted push.",
        )
    found: Iterator[Leftover] = module.clean(
        site, older_than=older_than, everybody=everybody, dry=dry, on_event=on_event
    )
    return found


@dataclass(slots=True)
class SiteReport:
    """The facts of a site by name, the problems found, and advice for settings that work."""

    facts: dict[str, str | int | bool] = field(default_factory=dict)
    problems: list[HibaliError] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)


def check_site(
    site: Site,
    programs: Sequence[str] = (),
    inspect: Callable[[Site, RemoteHost, SiteReport], None] | None = None,
    on_event: Listener = ignore,
) -> SiteReport:
    """Connect to the site and check configuration and programs; all errors go to the report.

    `inspect` is called with the host of a site that has a machine, and adds to the report.
    """
    report = SiteReport()
    try:
        if site.ssh is not None and site.ssh.auth == "gsi":
            report.facts["proxy"] = _check_proxy(site, site.ssh)
        if kind_of(site).has_machine:
            host, logins = reach_machine(site, report, on_event)
            try:
                _check_machine(site, programs, host, report)
                if inspect is not None:
                    inspect(site, host, report)
            finally:
                host.close()
            report.facts["logins"] = logins
        else:
            check_store(site, report.facts, on_event=on_event)
    except HibaliError as problem:
        report.problems.append(problem)
    if site.kind != "globus" and site.globus is not None and site.globus.client is not None:
        _check_collection(site, report, on_event)
    return report


def check_store(site: Site, facts: dict[str, str | int | bool], *, on_event: Listener = ignore) -> None:
    """Connect to the store of a site and fill `facts`. Raises the errors of connecting."""
    module = load("transfers.stores", site.kind)
    if hasattr(module, "check"):
        module.check(site, facts, on_event=on_event)
        return
    store = module.open_store(root_location(site), on_event=on_event)
    try:
        facts["writable"] = store.facts.writable
        store.stat()
    finally:
        store.close()


def _check_collection(site: Site, report: SiteReport, on_event: Listener) -> None:
    """Check the Globus collection of a site that has another kind of store."""
    try:
        load("transfers.stores", "globus").check(site, report.facts, on_event=on_event)
    except HibaliError as problem:
        report.problems.append(problem)


def _check_proxy(site: Site, settings: SshSettings) -> str:
    """Return the remaining lifetime of the GSI proxy, even if an open login does not need it."""
    return f"valid for {format_time_left(seconds_left(ready_proxy(settings.proxy, subject=site.name).path))}"


def reach_machine(site: Site, report: SiteReport, on_event: Listener) -> tuple[RemoteHost, int]:
    """Return the site's host and the number of logins; with `auto`, the agent is tried again."""
    module = load("transfers.stores", site.kind)

    def with_agent() -> tuple[RemoteHost, int]:
        connection, logins = module.connect(site, on_event=on_event)
        return AgentHost(connection), logins

    if site.ssh is None:
        return with_agent()
    report.facts["transport"] = "agent"

    def with_sftp(client: Client, logins: int) -> tuple[RemoteHost, int]:
        report.facts["transport"] = "sftp"
        return sftp_host(site, client), logins

    forget(site)
    return open_either(site, bulk=False, with_agent=with_agent, with_sftp=with_sftp, on_event=on_event)


def _check_machine(site: Site, programs: Sequence[str], host: RemoteHost, report: SiteReport) -> None:
    report.facts.update({name: fact for name, fact in host.facts().items() if fact})
    for name, path in site.roots.items():
        hint = f"Mount it, correct config.toml, or create it: hibali mkdir {site.name}:@{name}"
        _check_folder(site, host, report, f"root {name}", path, hint)
    _check_folder(site, host, report, "work", site.work)
    if not isinstance(host, AgentHost):
        return  # a forced command shows only by a request whether it allows a program, which costs time
    for program, found in host.which(programs).items():
        report.facts[program] = found or "not found"
        if found is None:
            report.problems.append(missing_program(site.name, program))


def missing_program(site: str, program: str) -> NotFoundError:
    """Return the error for a program that the site's account does not find."""
    return NotFoundError(
        "no-such-program",
        f"{program} was not found in a non-interactive login shell",
        subject=site,
        hint="Set PATH in the account's start-up file that non-interactive shells read.",
    )


def _check_folder(
    site: Site, host: RemoteHost, report: SiteReport, label: str, path: str, hint: str = ""
) -> None:
    """Report the path of a folder; with a `hint` what to do if it is missing, it has to exist."""
    if path.startswith("@"):
        name, _, below = path[1:].partition("/")
        path = f"{site.roots.get(name, '')}/{below}"
    try:
        expanded = host.expand(path)
        report.facts[label] = expanded.decode("utf-8", "replace")
        if hint and host.stat(expanded) is None:
            raise NotFoundError(
                "no-such-folder", f"the {label} does not exist", subject=f"{site.name}:{path}"
            )
    except AccessError as problem:
        report.problems.append(problem)
    except NotFoundError as problem:
        report.problems.append(
            NotFoundError(
                problem.code,
                f"the {label} does not exist",
                subject=f"{site.name}:{path}",
                hint=hint or "Correct config.toml.",
            )
        )


TRIAL_BYTES = 64 * 1024 * 1024  # sent, and received again, in one trial at most
_ROUND_TRIPS = 5  # number of requests; the fastest one is the round trip
_TRIAL_SECONDS = 5.0
_LINES_SECONDS = 30.0  # to open further channels, in addition to the pauses between logins
_NOTHING_TO_SET = (
    "only ssh sites have the settings `logins` and `channels`; hibali chooses the connections of other sites"
)
_GOOD = 0.9  # a setting is as good as the best one when it reaches this share of it


@dataclass(frozen=True, slots=True)
class Trial:
    """The rates of one setting, in bytes per second; `lines` is the number of channels that were opened."""

    logins: int
    channels: int
    lines: int
    up: int
    down: int
    bytes: int


@dataclass(slots=True)
class Tuning:
    """The measured times in seconds, and the trials; `because` is the reason if some are missing."""

    round_trip: float | None = None
    login_seconds: float | None = None
    trials: list[Trial] = field(default_factory=list)
    because: str | None = None

    @property
    def proposed(self) -> Trial | None:
        """The smallest setting that is as fast as the best one in both directions.

        None if only one was tried. Its `channels` is a maximum; a short round trip needs fewer.
        """
        return propose(self.trials) if len(self.trials) > 1 else None


def settings_to_try(round_trip: float, logins: int, rate: int = 0) -> list[tuple[int, int]]:
    """Return pairs of logins and channels, smallest first: one channel, several, and up to `logins` logins.

    With a very short round trip, or a low limit of `rate` bytes per second, one channel is enough.
    """
    if count_channels(round_trip, sys.maxsize, 2, rate) == 1:
        return [(1, 1)]
    several = sorted({number for number in (2, 4, 8, logins) if 1 < number <= logins})
    return [(1, 1), (1, 4), (1, 8), *((number, max(8, number)) for number in several)]


def propose(trials: Iterable[Trial]) -> Trial | None:
    """Return the first trial that reaches 90 % of the best rate, up and down, or the one closest to that."""
    found = list(trials)
    if not found:
        return None
    best_up, best_down = max(one.up for one in found) or 1, max(one.down for one in found) or 1

    def goodness(trial: Trial) -> float:
        return min(_GOOD, trial.up / best_up, trial.down / best_down)

    return max(found, key=goodness)  # the first of equals


def tune(
    site: Site, place: Location | None, logins: int | None = None, on_event: Listener = ignore
) -> Tuning:
    """Measure with random data in a temporary folder below `place`.

    `place` is None for a site without settings. Up to `logins` logins are tried, by default the site's
    setting, and none that would prompt. Raises the errors of connecting and writing.
    """
    tuning = Tuning()
    settings = site.ssh
    if settings is None or place is None:
        tuning.because = _NOTHING_TO_SET
        return tuning
    check_writable(place)
    login = Login(settings, site.limits, host=settings.bulk_hosts[0], on_event=on_event)
    login.ensure()
    tuning.login_seconds = login.seconds

    def with_agent() -> AgentHost | None:
        return AgentHost(ssh.connect(site, bulk=True, on_event=on_event)[0])

    def with_sftp(client: Client, logins: int) -> AgentHost | None:
        del logins
        client.close()
        return None

    host = open_either(site, bulk=True, with_agent=with_agent, with_sftp=with_sftp, on_event=on_event)
    if host is None:
        tuning.because = "SFTP always uses one channel; the settings have no effect"
        return tuning
    with closing(host):
        folder = host.expand(place.path)
        for _ in range(_ROUND_TRIPS):
            host.stat(folder)
        tuning.round_trip = host.round_trip
        own = folder.rstrip(b"/") + b"/hibali-tune-" + secrets.token_hex(8).encode()
        host.make_folder(own, exclusive=True)
        try:
            there = replace(place, path=own.decode("utf-8", "surrogateescape"))
            _try_all(tuning, site, there, logins or settings.logins, on_event)
        finally:
            host.remove_tree(own)
    return tuning


def _try_all(tuning: Tuning, site: Site, there: Location, logins: int, on_event: Listener) -> None:
    assert tuning.round_trip is not None
    series = settings_to_try(tuning.round_trip, logins, site.limits.bandwidth)
    if len(series) == 1:
        tuning.because = "one channel is enough for this connection"
    elif logins == 1:
        tuning.because = "several logins were not tried, because the site's settings allow only one"
    for number, (some, channels) in enumerate(series):
        trial = _try(site, there, number, some, channels, on_event)
        if some > 1 and trial.lines < channels:
            tuning.because = f"{some} logins could not be opened"
            return
        tuning.trials.append(trial)


def _try(site: Site, there: Location, number: int, logins: int, channels: int, on_event: Listener) -> Trial:
    """Measure one setting, up and down."""
    assert site.ssh is not None
    tried = replace(site, ssh=replace(site.ssh, logins=logins, channels=channels))
    with ExitStack() as stack:
        path = f"{there.path}/{number}"
        store = ssh.open_store(replace(there, site=tried, path=path), on_event=on_event)
        stack.callback(store.close)
        store.make_root()
        lock = store.lock("tune")
        stack.callback(lock.release)
        store.expect(sys.maxsize)
        lines = store.wait_for_channels(_LINES_SECONDS + logins * site.limits.login_interval_seconds)
        sent, up = _send(store, site.limits.bandwidth, there.text)
        down = _fetch(store)
        return Trial(logins, channels, lines, up, down, sent)


def _send(store: PosixStore, rate: int, subject: str) -> tuple[int, int]:
    """Return the bytes sent and the bytes per second."""
    began = time.monotonic()
    sent = 0

    def items() -> Iterator[Item]:
        for number in range(TRIAL_BYTES // PACK_BYTES):
            if time.monotonic() - began < _TRIAL_SECONDS:
                yield Item(number, Entry(b"%d" % number, Kind.FILE, PACK_BYTES, 1, 0o600))

    with closing(StreamRoute(rate).carry(_Noise(), store, items())) as events:
        for event in events:
            if isinstance(event, Committed):
                if event.problem is not None:
                    raise IncompleteError(event.problem.code, event.problem.message, subject=subject)
                sent += event.item.entry.size
    return sent, int(sent / (time.monotonic() - began))


def _fetch(store: PosixStore) -> int:
    """Return the bytes per second received."""
    there = [entry for entry in store.list() if entry.kind is Kind.FILE]
    began = time.monotonic()
    received = 0
    items = (Item(number, entry) for number, entry in enumerate(there))
    for payload in store.read(group_units(items, lambda: PACK_BYTES)):
        received += len(payload.data)
        if time.monotonic() - began > _TRIAL_SECONDS:
            break
    return int(received / (time.monotonic() - began))


class _Noise(Source):
    """A source of random files of one batch each, which cannot be compressed."""

    facts = AGENT_FACTS

    def __init__(self) -> None:
        self._content = secrets.token_bytes(PACK_BYTES)
        self._digest = hashlib.sha256(self._content).hexdigest()

    def list(self) -> Iterator[Entry]:
        """Return no entries; the listing is not used."""
        return iter(())

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store."""
        return ((entry, self._digest, None) for entry in entries)

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store."""
        for unit in units:
            yield Payload(unit, self._content, [PACK_BYTES], [self._digest], [Verification.DIGEST])
