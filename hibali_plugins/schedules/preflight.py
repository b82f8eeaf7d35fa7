"""Check that a schedule will work: log in as cron would, and list problems."""

from __future__ import annotations

import json
import os
import re
import shlex
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from hibali import errors, subprocesses
from hibali.config.model import Site
from hibali.config.settings import Settings
from hibali.errors import AccessError, HibaliError, NotFoundError, TryLaterError
from hibali.locations import Location
from hibali.ssh.certificates import renew
from hibali.ssh_options import (
    absolute,
    agent_socket,
    certificate_files,
    is_known_host,
    query_options,
    with_jump_hosts,
)
from hibali_plugins.schedules.environment import (
    Credential,
    bare_environment,
    hibali_argv,
    local_zone,
    other_credentials,
    ssh_certificates,
)
from hibali_plugins.schedules.install import lingers
from hibali_plugins.schedules.schedule import Schedule

_METHODS = re.compile(r"Permission denied \(([a-z0-9,@.-]+)\)")
_INTERACTIVE_METHODS = frozenset({"keyboard-interactive", "password", "hostbased"})


@dataclass(frozen=True, slots=True)
class Key:
    """A private key that ssh would try."""

    path: str
    has_passphrase: bool


@dataclass(frozen=True, slots=True)
class LoginMethod:
    """The way in which ssh logs in to a host without a user. `agent` is the agent's socket, "" for none; `agent_answers`: it responds.

    `certificates` are those next to the keys; `host_known` is None if that is unknown.
    """

    site: str
    host: str
    command: tuple[str, ...]
    address: str
    port: str
    keys: tuple[Key, ...] = ()
    agent: str = ""
    agent_answers: bool = False
    agent_ends_at_logout: bool = False
    certificates: tuple[Credential, ...] = ()
    host_known: bool | None = None

    @property
    def login_command(self) -> str:
        """The command with which a user logs in."""
        return shlex.join([*self.command, self.host])


def problems_of(method: LoginMethod, now: datetime, needed_until: datetime) -> list[HibaliError]:
    """Return the problems of a login method, even if it works now; the credentials must be valid until then."""
    found: list[HibaliError] = []
    if method.host_known is False:
        found.append(
            AccessError(
                "host-key",
                f"the host key of {method.address} is not known, and no user can accept it when the schedule runs",
                subject=method.site,
                hint=f"Compare it with the key that the site publishes, and accept it once: {method.login_command}",
            )
        )
    found.extend(_key_problems(method))
    return found + expiry_problems(method.certificates, now, needed_until)


def _key_problems(method: LoginMethod) -> list[HibaliError]:
    if not method.keys or not all(key.has_passphrase for key in method.keys):
        return []  # without keys, the login reports the problem
    path = method.keys[0].path
    fresh = (
        "Create a separate key for the schedule, and ask the site to restrict it:"
        f" ssh-keygen -t ed25519 -N '' -f {shlex.quote(path)}-unattended"
    )
    if not method.agent:
        return [
            AccessError(
                "passphrase-key",
                f"{path} has a passphrase, and no ssh agent will be available when the schedule runs",
                subject=method.site,
                hint=f"{fresh}; or name the socket of an agent that always runs: --env SSH_AUTH_SOCK=PATH",
            )
        ]
    if not method.agent_answers:
        return [
            AccessError(
                "no-agent",
                f"{path} has a passphrase, and no ssh agent responds at {method.agent}",
                subject=method.site,
                hint=f"Start one there: ssh-agent -a {shlex.quote(method.agent)}; ssh-add {shlex.quote(path)}",
            )
        ]
    if method.agent_ends_at_logout:
        return [
            AccessError(
                "agent-ends",
                f"the ssh agent at {method.agent} ends when you log out",
                subject=method.site,
                hint=f"{fresh}; or keep your services running: loginctl enable-linger",
            )
        ]
    return []


def expiry_problems(
    credentials: Iterable[Credential], now: datetime, needed_until: datetime
) -> list[HibaliError]:
    """Return the credentials that expire before then, or have expired."""
    return [
        AccessError(
            "certificate-expires" if each.kind == "certificate" else "proxy-expires",
            f"{each.description} expired on {each.expires:%Y-%m-%d %H:%M} UTC"
            if each.expires <= now
            else f"{each.description} is valid only until {each.expires:%Y-%m-%d %H:%M} UTC",
            subject=each.site,
            hint=each.renew,
        )
        for each in credentials
        if each.expires is not None and each.expires <= needed_until
    ]


def explain_login(
    problem: HibaliError, site: str, method: LoginMethod | None, set_here: Sequence[str]
) -> HibaliError:
    """Explain why a login without the user's environment failed. `set_here` are variables with credentials, by name only."""
    if method is not None and problem.code == "login-refused":
        methods = _METHODS.search(problem.message)
        left = set(methods[1].split(",")) if methods else set()
        if left and left <= _INTERACTIVE_METHODS:
            return AccessError(
                "second-factor",
                f"{method.host} requires more than a key ({', '.join(sorted(left))}), and no user can answer when the schedule runs",
                subject=site,
                hint="Ask the site for a key for automation, restricted to what this prints: hibali sites gate",
            )
    if problem.code == "no-credentials" or (
        problem.code in {"no-such-profile", "bad-credentials"} and set_here
    ):
        shell = f"its credentials are in this shell's {' and '.join(set_here)}, which the schedule will not have: "
        return AccessError(
            "missing-secret",
            f"{shell if set_here else ''}{problem.message}",
            subject=site,
            hint='Store them in a profile: aws configure --profile NAME; then set profile = "NAME" in the site\'s s3 table',
        )
    return problem


_SECRET_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_PROFILE",
    "AWS_SHARED_CREDENTIALS_FILE",
)
_CHECK_SECONDS = 180.0
_KINDS: Mapping[int, type[HibaliError]] = {
    int(kind.exit): kind
    for kind in (
        errors.UsageError,
        errors.NotFoundError,
        errors.AccessError,
        errors.TryLaterError,
        errors.IncompleteError,
        errors.RunFailedError,
        errors.RefusedError,
    )
}


def sites_of(command: Sequence[str], settings: Settings) -> list[Site]:
    """Return the sites that a command names: as SITE:PATH, or with --site."""
    found: dict[str, Site] = {}
    for number, argument in enumerate(command):
        name, colon, _ = argument.removeprefix("--site=").partition(":")
        named = (
            colon or argument.startswith("--site=") or (number and command[number - 1] in {"--site", "check"})
        )
        if named and name in settings.sites:
            found[name] = settings.sites[name]
    return list(found.values())


@dataclass(frozen=True, slots=True)
class ScheduleEndpoint:
    """A location that the schedule's command reads or writes, as it was typed; a source must exist."""

    location: Location
    must_exist: bool


def find_schedule_problems(
    config: str | None,
    settings: Settings,
    schedule: Schedule,
    now: datetime,
    endpoints: Sequence[ScheduleEndpoint] = (),
) -> list[HibaliError]:
    """Return all problems of a schedule: of keys and certificates, and of a login in the schedule's environment.

    The `endpoints` at sites are listed with that login.
    """
    environment = bare_environment(config, schedule.environment)
    due = schedule.cron.after(now, local_zone())
    until = max(due + timedelta(seconds=schedule.max_time or 3600.0), now + timedelta(days=1))
    found: list[HibaliError] = []
    for site in sites_of(schedule.command, settings):
        methods = login_methods(site, environment)
        own = [problem for method in methods for problem in problems_of(method, now, until)]
        own += expiry_problems(other_credentials(site, environment), now, until)
        own += [] if own else _renewal_problems(site, environment)
        if not own:
            problem = check_login(
                site, environment, [each for each in endpoints if each.location.site == site]
            )
            set_here = [name for name in _SECRET_VARIABLES if name in os.environ and name not in environment]
            if problem is not None:
                own.append(explain_login(problem, site.name, methods[0] if methods else None, set_here))
        found.extend(own)
    return found


def _renewal_problems(site: Site, environment: Mapping[str, str]) -> list[HibaliError]:
    """Get a new ssh certificate with this environment, to prove that nobody needs to be asked; return why that failed."""
    if site.ssh is None or site.ssh.certificate is None:
        return []
    try:
        renew(site.ssh.certificate, subject=site.name, environment=environment)
    except AccessError as problem:
        problem.hint = (
            "A schedule needs a command that asks nobody, by its absolute path and with a login of its own, such as"
            f" that of a service account. {problem.hint}"
        )
        return [problem]
    return []


def credentials_of(config: str | None, settings: Settings, schedule: Schedule) -> list[Credential]:
    """Return the credentials for the schedule's sites that may expire."""
    environment = bare_environment(config, schedule.environment)
    found: list[Credential] = []
    for site in sites_of(schedule.command, settings):
        for method in login_methods(site, environment, check_host_key=False):
            found.extend(method.certificates)
        found.extend(other_credentials(site, environment))
    return found


def check_login(
    site: Site, environment: Mapping[str, str], endpoints: Sequence[ScheduleEndpoint] = ()
) -> HibaliError | None:
    """Return why the site, or one of its `endpoints`, cannot be opened with this environment and a new login; None if all can."""
    with tempfile.TemporaryDirectory(prefix="hibali-") as folder:
        argv = [*hibali_argv(), "sites", "check", site.name, "--json", "--no-progress"]
        fresh = {**environment, "XDG_RUNTIME_DIR": folder}  # do not share a login of this session
        try:
            finished = subprocesses.run(argv, environment=fresh, timeout=_CHECK_SECONDS)
            if finished.exit_code != 0:
                return _reported_error(finished.stdout, finished.exit_code, site.name)
            problems = (_list_endpoint(each, fresh) for each in endpoints)
            return next((problem for problem in problems if problem is not None), None)
        except HibaliError as problem:
            return problem
        finally:
            _end_logins(site, Path(folder) / "hibali")


def _list_endpoint(endpoint: ScheduleEndpoint, environment: Mapping[str, str]) -> HibaliError | None:
    """Return why a location cannot be listed; a listing that takes long counts as success."""
    problem = try_command(["ls", endpoint.location.text, "--json", "--no-progress"], environment)
    if isinstance(problem, NotFoundError):
        return missing_source(endpoint.location) if endpoint.must_exist else None
    return problem


def missing_source(location: Location) -> NotFoundError:
    """Return the error for a source that does not exist."""
    return NotFoundError(
        "no-such-source",
        "the source does not exist",
        subject=location.text,
        hint="If it will be created later: --no-check",
    )


def try_command(argv: Sequence[str], environment: Mapping[str, str]) -> HibaliError | None:
    """Return why a read-only command of hibali fails in this folder and environment; None if it succeeds or takes too long."""
    try:
        finished = subprocesses.run([*hibali_argv(), *argv], environment=environment, timeout=_CHECK_SECONDS)
    except TryLaterError:
        return None
    if finished.exit_code == 0:
        return None
    return _reported_error(finished.stdout, finished.exit_code, f"hibali {argv[0]}")


def login_methods(
    site: Site, environment: Mapping[str, str], *, check_host_key: bool = True
) -> list[LoginMethod]:
    """Return how ssh would log in to the hosts of a site; none for a site of another kind."""
    if site.ssh is None:
        return []
    found = (_login_method(site, host, environment, check_host_key=check_host_key) for host in site.ssh.hosts)
    return [method for method in found if method is not None]


def _login_method(
    site: Site, host: str, environment: Mapping[str, str], *, check_host_key: bool
) -> LoginMethod | None:
    assert site.ssh is not None
    query = partial(query_options, site.ssh.command, environment=environment)
    try:
        options = query(host)
        hops = with_jump_hosts(options, query)
    except HibaliError:
        return None  # the login reports the problem
    if not options:
        return None
    home = environment.get("HOME", "/")
    agent = agent_socket(options, environment)
    named = options.all("identityfile") if site.ssh.auth == "ssh" else []
    keys = [absolute(path, home) for path in named]
    files = [file for hop in hops for file in certificate_files(hop, home)] if site.ssh.auth == "ssh" else []
    return LoginMethod(
        site=site.name,
        host=host,
        command=site.ssh.command,
        address=options.known_as(host),
        port=options.first("port", "22"),
        keys=tuple(Key(path, _has_passphrase(path)) for path in keys if Path(path).is_file()),
        agent=agent,
        agent_answers=bool(agent) and Path(agent).is_socket(),
        agent_ends_at_logout=_ends_at_logout(agent),
        certificates=tuple(ssh_certificates(site, host, files)),
        host_known=is_known_host(options, host, lambda path: absolute(path, home))
        if check_host_key and not options.first("proxycommand")
        else None,
    )


def _ends_at_logout(agent: str) -> bool:
    if re.match(r"/tmp/ssh-[^/]+/agent\.", agent):  # noqa: S108  # where ssh-agent(1) and sshd put theirs
        return True
    return agent.startswith("/run/user/") and not lingers()


def _has_passphrase(path: str) -> bool:
    """Return whether the private key cannot be read without a passphrase (ssh-keygen(1), -y with an empty -P)."""
    try:
        return subprocesses.run(["ssh-keygen", "-y", "-P", "", "-f", path], timeout=15).exit_code != 0
    except HibaliError:
        return False


def _end_logins(site: Site, folder: Path) -> None:
    """End master connections whose socket is about to be removed."""
    if site.ssh is None or not folder.is_dir():
        return
    for path in folder.iterdir():
        if path.is_socket():
            try:
                subprocesses.run(
                    [*site.ssh.command, "-S", str(path), "-O", "exit", "--", site.ssh.host], timeout=15
                )
            except HibaliError:
                return


def _reported_error(output: bytes, code: int, site: str) -> HibaliError:
    """Return the error that the command reported."""
    record: dict[str, Any] = {}
    for line in output.splitlines():
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and found.get("kind") == "error":
            record = found
    kind = _KINDS.get(code, errors.IncompleteError)
    return kind(
        str(record.get("code", "check-failed")),
        str(record.get("message", f"`hibali sites check` exited with {code}")),
        subject=str(record.get("about") or site),
        hint=str(record.get("hint") or f"hibali sites check {site}"),
    )
