"""Share buckets of OpenStack Swift by the access lists of their containers (Swift's manual, "Container ACLs").

Swift's S3 interface has neither policies nor another account's buckets, so lists are changed, and proven, by Swift's own API. A
list belongs to a whole container. The parts of large objects are in a second container, which gets the same list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from urllib.parse import quote, quote_from_bytes

from hibali.config.model import S3Settings
from hibali.errors import (
    AccessError,
    HibaliError,
    IncompleteError,
    NotFoundError,
    RefusedError,
    TryLaterError,
    UsageError,
)
from hibali.http.client import Response
from hibali.http.errors import MAX_ERROR_BYTES, is_failing
from hibali.http.rest import Call, RestClient
from hibali.subprocesses import credentials_from
from hibali.text import printable
from hibali_plugins.share.bucket_policy import EVERYONE, BucketSharing, count_objects
from transfers.model.entry import Entry, Kind
from transfers.model.sharing import Grant, ListedGrant, OtherView, Permission, Reach, Sharing
from transfers.stores.s3.requests import Requests
from transfers.stores.s3.store import S3Store

_PUBLIC = (".r:*", ".rlistings")  # to read, and to list
_PERSON = re.compile(r"(?!\.)[A-Za-z0-9_.@-]+:([A-Za-z0-9_.@-]+|\*)")
_HEADERS = {Permission.READ: "x-container-read", Permission.WRITE: "x-container-write"}
_SEGMENTS = "+segments"  # as Swift's S3 interface names the container of parts
_MOST_TOKEN = 16 * 1024

Lists = Mapping[Permission, tuple[str, ...]]


def with_person(lists: Lists, grant: Grant) -> Lists:
    """Return the lists with a grant in place of earlier ones of this person."""
    elements = _PUBLIC if grant.who == EVERYONE else (grant.who,)
    new = without_person(lists, grant.who)
    wanted = {Permission.READ} | {grant.permission}
    return {each: (*found, *elements) if each in wanted else found for each, found in new.items()}


def without_person(lists: Lists, who: str) -> Lists:
    """Return the lists without a person; all other elements stay as they are."""
    elements = _PUBLIC if who == EVERYONE else (who,)
    return {each: tuple(one for one in found if one not in elements) for each, found in lists.items()}


def people_in(lists: Lists) -> list[ListedGrant]:
    """Return whom the lists allow to read or write."""
    found: dict[str, Permission] = {}
    for permission in (Permission.READ, Permission.WRITE):
        for element in lists[permission]:
            if element != ".rlistings":
                found[EVERYONE if element == ".r:*" else printable(element)] = permission
    return [ListedGrant(Grant(who, permission)) for who, permission in sorted(found.items())]


class SwiftContainers:
    """A container and that of its parts, by Swift's own API and with a token of the site."""

    def __init__(self, settings: S3Settings, container: str, subject: str) -> None:
        """`settings` has the URL of the account that owns the container; `subject` names the site in errors."""
        self._settings = settings
        self._subject = subject
        self.names = (container, container + _SEGMENTS)
        self._rest = RestClient(
            settings.swift_url or "", subject, judge=lambda _, response: _error_of(response.status, subject)
        )
        self._token: str | None = None

    def lists(self, container: str) -> Lists | None:
        """Return the lists of a container; None if there is no such container."""
        response = self._send("HEAD", quote(container), accept=(404,))
        if response.status == 404:
            return None
        return {
            each: tuple(one.strip() for one in response.headers.get(header, "").split(",") if one.strip())
            for each, header in _HEADERS.items()
        }

    def set_lists(self, container: str, lists: Lists, *, create: bool) -> None:
        """Write both lists of a container."""
        headers = {header: ",".join(lists[each]) for each, header in _HEADERS.items()}
        self._send("PUT" if create else "POST", quote(container), headers=headers)

    def list_one(self) -> bytes:
        """Return the beginning of the container's listing, if this token may see it."""
        return self._send("GET", f"{quote(self.names[0])}?limit=1").body

    def beginning(self, key: bytes, most: int) -> bytes:
        """Return the first bytes of an object, if this token may read it."""
        target = f"{quote(self.names[0])}/{quote_from_bytes(key)}"
        headers = {"Range": f"bytes=0-{most - 1}"}
        response = self._send("GET", target, headers=headers, accept=(416,), limit=most)
        return b"" if response.status == 416 else response.body

    def _send(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str] | None = None,
        accept: Collection[int] = (),
        limit: int = MAX_ERROR_BYTES,
    ) -> Response:
        """Send a request with retries; `target` is quoted, and below the account."""
        token = self._current_token()
        sent = {**(headers or {}), **({"X-Auth-Token": token} if token else {})}
        call = Call(method, f"/{target}", headers=sent, accept=accept, most=limit)
        return self._rest.repeat(call, attempts=4)

    def _current_token(self) -> str:
        """Return the token; it is empty if the site has none, and then requests are without a login."""
        if self._token is None and self._settings.swift_token_command:
            self._token = credentials_from(
                self._settings.swift_token_command,
                _read_token,
                key="swift_token_command",
                what="token",
                subject=self._subject,
                hint="Run the command yourself: it must print a token of OpenStack, and nothing else.",
            )
        return self._token or ""


def _read_token(text: bytes) -> str:
    token = text.strip()
    if not token or len(token) > _MOST_TOKEN or not re.fullmatch(rb"[!-~]+", token):
        raise ValueError("its output is not a token")
    return token.decode()


def _error_of(status: int, subject: str) -> HibaliError:
    if status in {401, 403}:
        return AccessError("denied", f"Swift does not allow this with this token ({status})", subject=subject)
    if status == 404:
        return NotFoundError("vanished", "the bucket or the object does not exist in Swift", subject=subject)
    if is_failing(status):
        return TryLaterError("server-busy", f"Swift's status is {status}", subject=subject, transient=True)
    return IncompleteError("refused-by-server", f"Swift refuses this ({status})", subject=subject)


class _ContainerView(OtherView):
    """What a token of another person sees: Swift's S3 interface shows a login only its own account."""

    def __init__(self, containers: SwiftContainers, prefix: bytes) -> None:
        self._containers = containers
        self._prefix = prefix

    def list_one(self) -> None:
        """See OtherView."""
        self._containers.list_one()

    def beginning(self, path: bytes, most: int) -> bytes:
        """See OtherView."""
        return self._containers.beginning(self._prefix + path, most)


def sharing_of_bucket(store: S3Store) -> Sharing:
    """Return the access to a bucket of S3, or of Swift, whose S3 interface has no policies."""
    if store.swift is not None:
        return ContainerSharing(store.requests, store.swift, store.root_path)
    return BucketSharing(store.requests, store.root_path)


class ContainerSharing(Sharing):
    """The access to a whole bucket of Swift."""

    def __init__(self, requests: Requests, settings: S3Settings, key: bytes) -> None:
        self._requests = requests
        self._key = key
        self._containers = SwiftContainers(settings, requests.bucket, requests.subject)

    def person(self, text: str) -> str:
        """See Sharing: as Swift writes it, with the ids of a project and of a user."""
        if text != EVERYONE and not _PERSON.fullmatch(text):
            raise UsageError(
                "not-a-person",
                "Swift names people by the ids of their project and user",
                subject=printable(text),
                hint="Use --with PROJECT:USER, --with PROJECT:* for all of a project, or --with everyone.",
            )
        return text

    def plan(self, place: Entry, grant: Grant) -> Reach:
        """See Sharing."""
        self._check(place)
        if grant.who == EVERYONE and grant.permission is Permission.WRITE:
            message = "Swift lets nobody write without a login"
            raise RefusedError("not-shared", message, subject=self._requests.subject)
        return self._reach(lambda lists: with_person(lists, grant))

    def add(self, place: Entry, grant: Grant) -> Reach:
        """See Sharing."""
        reach = self.plan(place, grant)
        self._change(lambda lists: with_person(lists, grant), create=True)
        return reach

    def remove(self, place: Entry, who: str) -> Reach:
        """See Sharing."""
        self._check(place)
        reach = self._reach(lambda lists: without_person(lists, who))
        self._change(lambda lists: without_person(lists, who), create=False)
        return reach

    def people(self, place: Entry) -> list[ListedGrant]:
        """See Sharing."""
        self._check(place)
        return people_in(self._lists())

    def view(self) -> OtherView:
        """See Sharing."""
        return _ContainerView(self._containers, self._key + b"/" if self._key else b"")

    def _check(self, place: Entry) -> None:
        if self._key or place.kind is not Kind.FOLDER:
            raise RefusedError(
                "not-shared",
                "Swift shares whole buckets, not single folders or files",
                subject=self._requests.subject,
                hint="Put what is shared into a bucket of its own, or share a file by a link.",
            )

    def _lists(self) -> Lists:
        found = self._containers.lists(self._requests.bucket)
        if found is None:
            raise _error_of(404, self._requests.subject)
        return found

    def _reach(self, change: Callable[[Lists], Lists]) -> Reach:
        files, size = count_objects(self._requests, b"")
        lists = self._lists()
        return Reach(files, size, int(change(lists) != lists))

    def _change(self, change: Callable[[Lists], Lists], *, create: bool) -> None:
        """Change the lists of both containers, and look whether they are as wanted afterwards."""
        nothing: Lists = dict.fromkeys(Permission, ())
        for name in reversed(
            self._containers.names
        ):  # the parts first: an object without them cannot be read
            seen = self._containers.lists(name)
            wanted = change(seen or nothing)
            if (seen is None and not create) or wanted == seen:
                continue
            self._containers.set_lists(name, wanted, create=seen is None)
            if self._containers.lists(name) != wanted:
                raise TryLaterError(
                    "policy-changed",
                    "somebody else changed the access list of the bucket at the same moment",
                    subject=self._requests.subject,
                    hint="Look at what is there now, and run the command again.",
                )
