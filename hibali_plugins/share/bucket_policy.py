"""Share objects by statements in the policy of their bucket (AWS: "Policies and permissions in Amazon S3").

A bucket has one policy, which is read and written whole, without any condition. hibali changes only statements whose
`Sid` is its own, keeps all others as they are, and looks at the policy again afterwards, to notice a concurrent change.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from hibali.errors import IncompleteError, RefusedError, TryLaterError, UsageError
from hibali.retry import wait_unless_interrupted
from hibali.text import printable
from transfers.model.entry import Entry, Kind
from transfers.model.facts import is_own_name
from transfers.model.sharing import Grant, ListedGrant, Permission, Reach, Sharing
from transfers.stores.s3.errors import Said, code_in, error_of
from transfers.stores.s3.listing import pages
from transfers.stores.s3.requests import Requests

EVERYONE = "everyone"
_OURS = re.compile(r"hibali([0-9a-f]{32})(Read|List|Write)")
_PERSON = re.compile(r"[A-Za-z0-9_+=,.@:/-]{1,512}")
_VERSION = "2012-10-17"
_MOST_BYTES = 20 * 1024  # of a policy, at AWS
_WRITING = ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:ListMultipartUploadParts", "s3:PutObject"]
_SETTLES_SECONDS = 5  # until a changed policy must be there when it is read again

Policy = dict[str, Any]


def with_grant(policy: Policy, bucket: str, key: str, grant: Grant, *, folder: bool) -> Policy:
    """Return a policy with the statements of a grant; earlier ones of this person for this place are replaced."""
    new = without_person(policy, bucket, key, grant.who)
    new["Statement"] += _statements(bucket, key, grant, folder=folder)
    return new


def without_person(policy: Policy, bucket: str, key: str, who: str) -> Policy:
    """Return a policy without hibali's statements for a person and a place."""
    name = _name(bucket, key, who)
    new: Policy = copy.deepcopy(policy) if policy else {"Version": _VERSION}
    new["Statement"] = [each for each in statements_of(policy) if _name_of(each) != name]
    return new


def statements_of(policy: Policy) -> list[Any]:
    """Return the statements of a policy; a single one may stand without a list."""
    found = policy.get("Statement", [])
    return list(found) if isinstance(found, list) else [found]


def _statements(bucket: str, key: str, grant: Grant, *, folder: bool) -> Iterator[Policy]:
    prefix = f"{key}/" if key and folder else key
    objects = f"arn:aws:s3:::{bucket}/{prefix}{'*' if folder else ''}"
    ends: Policy = {}
    if grant.until is not None:
        moment = grant.until.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ends = {"DateLessThan": {"aws:CurrentTime": moment}}
    name = f"hibali{_name(bucket, key, grant.who)}"
    principal: Any = "*" if grant.who == EVERYONE else {"AWS": [grant.who]}

    def statement(suffix: str, actions: list[str], resource: str, condition: Policy) -> Policy:
        made = {"Sid": name + suffix, "Effect": "Allow", "Principal": principal}
        made |= {"Action": actions, "Resource": [resource]}
        return made | ({"Condition": condition} if condition else {})

    yield statement("Read", ["s3:GetObject"], objects, ends)
    if folder:
        within = {"StringLike": {"s3:prefix": [prefix, f"{prefix}*"]}} if prefix else {}
        yield statement("List", ["s3:ListBucket"], f"arn:aws:s3:::{bucket}", within | ends)
    if grant.permission is Permission.WRITE:
        yield statement("Write", _WRITING, objects, ends)


def _name(bucket: str, key: str, who: str) -> str:
    """Return the name of the statements for a person and a place; a `Sid` has only letters and digits."""
    return hashlib.sha256(json.dumps([bucket, key, who]).encode()).hexdigest()[:32]


def _name_of(statement: Any) -> str | None:
    """Return the name of a statement of hibali; None for any other."""
    found = _OURS.fullmatch(str(statement.get("Sid", ""))) if isinstance(statement, Mapping) else None
    return found[1] if found else None


def people_in(policy: Policy, bucket: str, key: str) -> list[ListedGrant]:
    """Return whom the statements of a policy allow to read or write at a place, also partly."""
    found: dict[tuple[str, bool], tuple[Permission, datetime | None]] = {}
    for each in statements_of(policy):
        if not isinstance(each, Mapping) or each.get("Effect") != "Allow" or not _concerns(each, bucket, key):
            continue
        actions = [str(action).lower() for action in _listed(each.get("Action"))]
        writes = any(action in {"*", "s3:*"} or action.startswith("s3:put") for action in actions)
        if not writes and not any(action in {"s3:get*", "s3:getobject"} for action in actions):
            continue
        permission = Permission.WRITE if writes else Permission.READ
        for who in _people_of(each):
            who_and_ours = (who, _name_of(each) is not None)
            if who_and_ours not in found or writes:
                found[who_and_ours] = permission, _end_of(each)
    return [
        ListedGrant(Grant(who, permission, end), ours)
        for (who, ours), (permission, end) in sorted(found.items())
    ]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _people_of(statement: Mapping[str, Any]) -> list[str]:
    principal = statement.get("Principal")
    if principal == "*":
        return [EVERYONE]
    if not isinstance(principal, Mapping):
        return ["(all but some)"] if "NotPrincipal" in statement else []
    people = [str(who) for values in principal.values() for who in _listed(values)]
    return [EVERYONE if who == "*" else printable(who) for who in people]


def _concerns(statement: Mapping[str, Any], bucket: str, key: str) -> bool:
    """Return whether a resource of a statement may be the place, above or below it."""
    for resource in map(str, _listed(statement.get("Resource"))):
        path = resource.removeprefix("arn:aws:s3:::")
        beginning = re.split(r"[*?$]", path)[0]
        place = f"{bucket}/{key}"
        if place.startswith(beginning) or beginning.startswith(place):
            return True
    return "NotResource" in statement


def _end_of(statement: Mapping[str, Any]) -> datetime | None:
    condition = statement.get("Condition")
    try:
        text = condition["DateLessThan"]["aws:CurrentTime"]  # type: ignore[index]
        return datetime.fromisoformat(str(text))
    except (KeyError, TypeError, ValueError):
        return None


def count_objects(requests: Requests, prefix: bytes) -> tuple[int, int]:
    """Return how many objects there are below a prefix, and their size in bytes."""
    files = size = 0
    for page in pages(requests, prefix):
        own = [each for each in page if not is_own_name(each.path)]
        files += len(own)
        size += sum(each.size for each in own)
    return files, size


class BucketSharing(Sharing):
    """The access to an object, or to all objects below a prefix."""

    def __init__(self, requests: Requests, key: bytes) -> None:
        self._requests = requests
        self._key = key

    def person(self, text: str) -> str:
        """See Sharing; whom a server takes a name for, only it knows, so hibali proves what it did."""
        if not _PERSON.fullmatch(text):
            raise UsageError(
                "not-a-person",
                "this is not the name of an account at an object store",
                subject=printable(text),
                hint="Use --with arn:aws:iam::ACCOUNT:user/NAME, or --with everyone.",
            )
        return text

    def plan(self, place: Entry, grant: Grant) -> Reach:
        """See Sharing."""
        policy = self._read()
        return self._reach(place, policy, self._granted(policy, place, grant))

    def add(self, place: Entry, grant: Grant) -> Reach:
        """See Sharing."""
        policy = self._read()
        wanted = self._granted(policy, place, grant)
        reach = self._reach(place, policy, wanted)
        self._replace(policy, wanted)
        return reach

    def remove(self, place: Entry, who: str) -> Reach:
        """See Sharing."""
        policy = self._read()
        wanted = without_person(policy, self._requests.bucket, self._text(), who)
        reach = self._reach(place, policy, wanted)
        self._replace(policy, wanted)
        return reach

    def people(self, place: Entry) -> list[ListedGrant]:
        """See Sharing."""
        del place
        return people_in(self._read(), self._requests.bucket, self._text())

    def _granted(self, policy: Policy, place: Entry, grant: Grant) -> Policy:
        bucket, folder = self._requests.bucket, place.kind is Kind.FOLDER
        wanted = with_grant(policy, bucket, self._text(), grant, folder=folder)
        if len(json.dumps(wanted)) > _MOST_BYTES:
            raise RefusedError(
                "policy-too-large",
                "the bucket's policy would be larger than 20 KiB",
                subject=self._requests.subject,
                hint="Share a folder that contains the others, or remove old shares.",
            )
        return wanted

    def _text(self) -> str:
        """Return the key as text for a policy, in which some characters are wildcards and variables."""
        try:
            text = self._key.decode()
        except UnicodeDecodeError:
            text = "*"
        if re.search(r"[*?$\x00-\x1f]", text):
            message = "names with *, ?, $ or control characters mean something else in policies"
            raise RefusedError("not-shared", message, subject=printable(self._key))
        return text

    def _reach(self, place: Entry, policy: Policy, wanted: Policy) -> Reach:
        changed = int(statements_of(policy) != statements_of(wanted))
        if place.kind is Kind.FILE:
            return Reach(1, place.size, changed)
        files, size = count_objects(self._requests, self._key + b"/" if self._key else b"")
        return Reach(files, size, changed)

    def _read(self) -> Policy:
        """Read the policy; {} if there is none. Raise `RefusedError` for a server without policies."""
        requests = self._requests
        response = requests.request("GET", query={"policy": ""}, accept=(404, 405, 501), most=1024 * 1024)
        code = code_in(response.body) if response.status >= 300 else ""
        if response.status in {405, 501} or (response.status < 300 and response.body[:1] == b"<"):
            raise RefusedError(
                "no-policies",
                "this object store has no bucket policies",
                subject=requests.subject,
                hint="Share a file by a link, or set swift_url if this is OpenStack Swift: hibali config edit",
            )
        if response.status == 404 and code in {"", "NoSuchBucketPolicy"}:
            return {}
        if response.status == 404:
            raise error_of(404, Said(code), requests.subject)
        try:
            policy = json.loads(response.body)
            if not isinstance(policy, dict):
                raise TypeError
        except (ValueError, TypeError, RecursionError):
            raise IncompleteError(
                "unreadable-policy", "the bucket's policy is not JSON", subject=self._requests.subject
            ) from None
        return policy

    def _replace(self, seen: Policy, wanted: Policy) -> None:
        """Write a policy, unless it changed since it was `seen`. Raise `TryLaterError` if somebody else changes it, too."""
        if statements_of(seen) == statements_of(wanted):
            return
        if statements_of(self._read()) != statements_of(seen):
            raise self._changed()
        if statements_of(wanted):
            body = json.dumps(wanted).encode()
            md5 = hashlib.md5(body, usedforsecurity=False).digest()
            headers = {"Content-Type": "application/json", "Content-MD5": base64.b64encode(md5).decode()}
            self._requests.request("PUT", query={"policy": ""}, headers=headers, body=body)
        else:
            self._requests.request("DELETE", query={"policy": ""}, accept=(404,))
        deadline = time.monotonic() + _SETTLES_SECONDS
        while not _has_same(self._read(), wanted):
            if time.monotonic() > deadline:
                raise self._changed()
            wait_unless_interrupted(0.2)

    def _changed(self) -> TryLaterError:
        return TryLaterError(
            "policy-changed",
            "somebody else changed the bucket's policy at the same moment",
            subject=self._requests.subject,
            hint="Look at what is there now, and run the command again.",
        )


def _has_same(found: Policy, wanted: Policy) -> bool:
    """Return whether a policy has as many statements, and the same ones by name, as the wanted one; servers rewrite the rest."""

    def names(policy: Policy) -> list[str]:
        return sorted(str(each.get("Sid", "")) for each in statements_of(policy) if isinstance(each, Mapping))

    return names(found) == names(wanted)
