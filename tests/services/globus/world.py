"""Hold the state of one world of the double: identities, consents, collections, tasks, faults, the request log.

Each test has its own world on the shared server, so that faults do not affect other tests.
"""

from __future__ import annotations

import fnmatch
import re
import secrets
import threading
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.services.globus.tasks import Task

TRANSFER = "transfer.api.globus.org"
AUTH = "auth.globus.org"
TRANSFER_ALL = f"urn:globus:auth:scope:{TRANSFER}:all"
_FILTER = re.compile(r"(\w+):([^/]*)")  # Transfer's filter syntax: name:~*.txt/type:file


class ApiError(Exception):
    """An error answer: status, Globus's code and message, and further members of its body."""

    def __init__(self, status: int, code: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.more = status, code, message, more
        self.headers: dict[str, str] = {}


@dataclass
class Client:
    """An application: confidential with a secret, native without one."""

    id: str
    secret: str | None
    name: str = "a client"


@dataclass
class Identity:
    """A user, or a client that acts for itself."""

    id: str
    username: str
    name: str

    @property
    def email(self) -> str:
        return self.username


@dataclass
class Token:
    """An access or refresh token for one resource server."""

    value: str
    client: str
    identity: str
    resource_server: str
    scopes: tuple[str, ...]
    issued: float
    expires: float
    refresh: bool = False


@dataclass
class Collection:
    """A collection of the double, which exports a local folder."""

    id: str
    display_name: str
    root: Path
    owner: str
    entity_type: str = "GCSv5_mapped_collection"
    data_access: bool = False
    https: bool = False
    home: str = "/"
    force_verify: bool = False
    disable_verify: bool = False
    connected: bool = True


@dataclass
class Fault:
    """An active fault; `times` counts down, None means until it is cleared."""

    id: str
    kind: str
    collection: str | None = None
    path: str | None = None
    request: str | None = None
    task: str | None = None
    times: int | None = None
    after: int = 0
    fatal: bool = False
    code: str | None = None
    status: int | None = None
    message: str | None = None
    retry_after: int | None = None
    body: dict[str, Any] = field(default_factory=dict)
    hits: int = 0

    def concerns(self, kinds: tuple[str, ...], about: dict[str, Any]) -> bool:
        return (
            self.kind in kinds
            and (self.times is None or self.times > 0)
            and (self.collection is None or self.collection in about.get("collections", ()))
            and (self.task is None or self.task == about.get("task"))
            and (self.request is None or self.request in about.get("request", ""))
            and about.get("done", 0) >= self.after
            and (
                self.path is None
                or any(fnmatch.fnmatchcase(path, self.path) for path in about.get("paths", ()))
            )
        )


@dataclass
class World:
    """The state of one test; `changed` is notified when waiting tasks should check their state again."""

    url: str
    clients: dict[str, Client] = field(default_factory=dict)
    identities: dict[str, Identity] = field(default_factory=dict)
    tokens: dict[str, Token] = field(default_factory=dict)
    codes: dict[str, dict[str, Any]] = field(default_factory=dict)
    consents: dict[tuple[str, str, tuple[str, ...]], dict[str, Any]] = field(default_factory=dict)
    collections: dict[str, Collection] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)
    faults: dict[str, Fault] = field(default_factory=dict)
    submission_ids: set[str] = field(default_factory=set)
    submissions: list[dict[str, Any]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    rules: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)  # per collection, by id
    bookmarks: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)  # by owner and id
    user: str = ""  # the browser's user
    denies: bool = False
    token_seconds: int = 172_800
    folder_limit: int = 100_000
    page_limit: int = 1000
    active_limit: int = 3  # transfers, and deletions, of an account that run at a time
    pending_limit: int = 100  # those of an account that are active or queued
    ended: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, *kinds: str, **about: Any) -> Fault | None:
        """Return the first fault of these kinds that applies, and count it."""
        with self.changed:
            for fault in self.faults.values():
                if fault.concerns(kinds, about):
                    fault.hits += 1
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return None

    def has(self, *kinds: str, **about: Any) -> Fault | None:
        """Return the first fault of these kinds without counting it, for lasting conditions such as an offline endpoint."""
        with self.changed:
            return next((fault for fault in self.faults.values() if fault.concerns(kinds, about)), None)

    def identity_of(self, client: Client) -> Identity:
        """Return the identity of a client that acts for itself."""
        return self.identities.setdefault(
            client.id, Identity(client.id, f"{client.id}@clients.auth.globus.org", client.name)
        )

    def issue(self, client: str, identity: str, server: str, scopes: tuple[str, ...], refresh: bool) -> Token:
        now = time.time()
        seconds = 180 * 86_400 if refresh else self.token_seconds
        kind = "refresh" if refresh else "access"
        value = f"{kind}{secrets.token_urlsafe(30)}"
        token = Token(value, client, identity, server, scopes, now, now + seconds, refresh)
        self.tokens[value] = token
        return token

    def valid_token(self, value: str, *, refresh: bool | None = None) -> Token | None:
        """Return the token with that text, unless it expired or was revoked."""
        token = self.tokens.get(value)
        if token is None or token.expires <= time.time() or refresh not in {None, token.refresh}:
            return None
        return token

    def consented(self, client: str, identity: str, path: tuple[str, ...]) -> bool:
        return (client, identity, path) in self.consents

    def collection(self, collection_id: str) -> Collection:
        found = self.collections.get(collection_id)
        if found is None:
            raise ApiError(404, "EndpointNotFound", f"No such endpoint '{collection_id}'")
        return found


def new_id() -> str:
    return str(uuid.uuid4())


def now(plus: float = 0) -> str:
    """Format a time like Transfer."""
    return (datetime.now(UTC) + timedelta(seconds=plus)).isoformat(timespec="seconds")


def data_access(collection: str) -> str:
    return f"https://auth.globus.org/scopes/{collection}/data_access"


def filters(text: str) -> dict[str, str]:
    """Parse Transfer's `filter` parameter into its fields."""
    return dict(_FILTER.findall(text))


def passes(rule: str, value: str) -> bool:
    """Return whether a value matches one filter: `x,y`, `!x`, `~glob`, `!~glob`."""
    wanted = not rule.startswith("!")
    rule = rule.removeprefix("!")
    if rule.startswith("~"):
        return fnmatch.fnmatchcase(value, rule[1:]) is wanted
    return (value in rule.removeprefix("=").split(",")) is wanted
