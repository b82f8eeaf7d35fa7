"""What will keep a schedule from working at three in the morning, decided from what was found; each with a line to type."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from hibali.errors import AccessError, HibaliError
from runs.unattended.credentials import Credential

_METHODS = re.compile(r"Permission denied \(([a-z0-9,@.-]+)\)")
_ASKING = frozenset({"keyboard-interactive", "password", "hostbased"})


@dataclass(frozen=True, slots=True)
class Key:
    """A private key that ssh would try."""

    path: str
    has_passphrase: bool


@dataclass(frozen=True, slots=True)
class WayIn:
    """How ssh goes to one host unattended. `agent` is the socket it would ask, "" for none; `agent_answers` whether that is there.

    `certificates` are those beside the keys; `host_known` is None where that could not be found out.
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
    def by_hand(self) -> str:
        """The line that a person types to go there."""
        return shlex.join([*self.command, self.host])


def obstacles_of(way: WayIn, now: datetime, needed_until: datetime) -> list[HibaliError]:
    """What is wrong with a way in, whether or not it works just now; the credentials have to hold until then."""
    found: list[HibaliError] = []
    if way.host_known is False:
        found.append(
            AccessError(
                "host-key",
                f"the key of {way.address} is not known, and nobody will be there to accept it",
                about=way.site,
                hint=f"Compare it with what the site publishes, and accept it once: {way.by_hand}",
            )
        )
    found.extend(_of_keys(way))
    return found + expiry_obstacles(way.certificates, now, needed_until)


def _of_keys(way: WayIn) -> list[HibaliError]:
    if not way.keys or not all(key.has_passphrase for key in way.keys):
        return []  # without any, the login itself will say
    path = way.keys[0].path
    fresh = (
        "Make a key of its own for this, and ask the site to restrict what it may do:"
        f" ssh-keygen -t ed25519 -N '' -f {shlex.quote(path)}-unattended"
    )
    if not way.agent:
        return [
            AccessError(
                "passphrase-key",
                f"{path} has a passphrase, and there will be no agent that knows it",
                about=way.site,
                hint=f"{fresh}; or name the socket of an agent that is always there: --env SSH_AUTH_SOCK=PATH",
            )
        ]
    if not way.agent_answers:
        return [
            AccessError(
                "no-agent",
                f"{path} has a passphrase, and no agent answers at {way.agent}",
                about=way.site,
                hint=f"Start one there: ssh-agent -a {shlex.quote(way.agent)}; ssh-add {shlex.quote(path)}",
            )
        ]
    if way.agent_ends_at_logout:
        return [
            AccessError(
                "agent-ends",
                f"the agent at {way.agent} ends when you log out",
                about=way.site,
                hint=f"{fresh}; or let your services go on: loginctl enable-linger",
            )
        ]
    return []


def expiry_obstacles(
    credentials: Iterable[Credential], now: datetime, needed_until: datetime
) -> list[HibaliError]:
    """Those that do not outlive the night, or have not lived to see it."""
    return [
        AccessError(
            "certificate-expires" if each.kind == "certificate" else "proxy-expires",
            f"{each.words} expired on {each.expires:%Y-%m-%d %H:%M} UTC"
            if each.expires <= now
            else f"{each.words} is good until {each.expires:%Y-%m-%d %H:%M} UTC only",
            about=each.site,
            hint=each.renew,
        )
        for each in credentials
        if each.expires is not None and each.expires <= needed_until
    ]


def explain_login(problem: HibaliError, site: str, way: WayIn | None, set_here: Sequence[str]) -> HibaliError:
    """A bare login's failure, in terms of what is different at night. `set_here` are variables with credentials, by name only."""
    if way is not None and problem.code == "login-refused":
        methods = _METHODS.search(problem.message)
        left = set(methods[1].split(",")) if methods else set()
        if left and left <= _ASKING:
            return AccessError(
                "second-factor",
                f"{way.host} asks for more than a key ({', '.join(sorted(left))}), and nobody will be there to answer",
                about=site,
                hint="Ask the site for a key for automation, restricted to what this prints: hibali sites gate",
            )
    if problem.code in {"no-credentials", "no-such-profile", "bad-credentials"} and set_here:
        return AccessError(
            "missing-secret",
            f"its credentials are in this shell's {' and '.join(set_here)}, which will not be there: {problem.message}",
            about=site,
            hint='Keep them in a profile: aws configure --profile NAME; then set profile = "NAME" in the site\'s s3 table',
        )
    if problem.code == "no-credentials":
        return AccessError(
            "missing-secret",
            problem.message,
            about=site,
            hint='Keep them in a profile: aws configure --profile NAME; then set profile = "NAME" in the site\'s s3 table',
        )
    return problem
