"""Share folders of guest collections by access rules (Globus Transfer API, "Access Management")."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime
from typing import Any

from hibali.errors import HibaliError, RefusedError, UsageError
from hibali.text import printable
from hibali_plugins.globus.store import GlobusStore
from transfers.model.entry import Entry, Kind
from transfers.model.sharing import Grant, ListedGrant, Permission, Reach, Sharing

_EVERYONE = {"everyone": "anonymous", "all-users": "all_authenticated_users"}
_PERMISSIONS = {Permission.READ: "r", Permission.WRITE: "rw"}

Rule = dict[str, Any]


class CollectionSharing(Sharing):
    """The access to one folder of a collection; what is below it later is shared, too."""

    def __init__(self, store: GlobusStore) -> None:
        self._globus = store.globus
        self._collection = store.collection
        self._path = store.root.rstrip("/") + "/"
        self._list_files = store.list

    def person(self, text: str) -> str:
        """See Sharing: an identity or `group:` by its UUID, `everyone` without a login, or `all-users` of Globus."""
        name = text.removeprefix("user:")
        kind = "group:" if name.startswith("group:") else ""
        try:
            return name if name in _EVERYONE else kind + str(uuid.UUID(name.removeprefix("group:")))
        except ValueError:
            raise UsageError(
                "not-a-person",
                "Globus names people and groups by their UUIDs",
                subject=printable(text),
                hint="To find one: globus get-identities anna@example.org",
            ) from None

    def plan(self, place: Entry, grant: Grant) -> Reach:
        """See Sharing."""
        self._check(place)
        return self._reach(changed=not _has(self._rule_of(grant.who), grant))

    def add(self, place: Entry, grant: Grant) -> Reach:
        """See Sharing."""
        self._check(place)
        rule = self._rule_of(grant.who)
        if _has(rule, grant):
            return self._reach(changed=False)
        wanted: Rule = {"DATA_TYPE": "access", "permissions": _PERMISSIONS[grant.permission]}
        wanted["expiration_date"] = _time_text(grant.until)
        if rule is not None:
            self._globus.change_access(self._collection, str(rule["id"]), wanted)
        else:
            kind, principal = _principal(grant.who)
            wanted |= {"principal_type": kind, "principal": principal, "path": self._path}
            try:
                self._globus.add_access(self._collection, wanted)
            except HibaliError:  # its answer may have been lost
                if not _has(self._rule_of(grant.who), grant):
                    raise
        return self._reach(changed=True)

    def remove(self, place: Entry, who: str) -> Reach:
        """See Sharing."""
        del place
        rule = self._rule_of(who)
        if rule is not None:
            self._globus.delete_access(self._collection, str(rule["id"]))
        return self._reach(changed=rule is not None)

    def people(self, place: Entry) -> list[ListedGrant]:
        """See Sharing."""
        self._check(place)
        found = []
        for rule in self._rules():
            path = str(rule.get("path", ""))
            if path.startswith(self._path) or self._path.startswith(path):
                writes = rule.get("permissions") == "rw"
                permission = Permission.WRITE if writes else Permission.READ
                found.append(
                    ListedGrant(Grant(_name(rule), permission, _time_of(rule.get("expiration_date"))))
                )
        return found

    def _check(self, place: Entry) -> None:
        """Raise `RefusedError` for what has no rules."""
        if place.kind is not Kind.FOLDER:
            message = "Globus shares folders, not single files"
            raise RefusedError("not-shared", message, subject=self._path.rstrip("/"))
        kind = str(self._globus.endpoint(self._collection).get("entity_type", ""))
        if not kind.endswith("guest_collection"):
            raise RefusedError(
                "no-shares",
                "only guest collections of Globus have access rules",
                subject=self._globus.site.name,
                hint="Make a guest collection of the folder on app.globus.org, and add it as a site.",
            )

    def _rules(self) -> list[Rule]:
        found = self._globus.access_rules(self._collection)
        # the rule of its administrator has a role, and cannot be changed
        return [rule for rule in found if not rule.get("role_id")]

    def _rule_of(self, who: str) -> Rule | None:
        for rule in self._rules():
            if _name(rule) == who and str(rule.get("path", "")) == self._path:
                return rule
        return None

    def _reach(self, *, changed: bool) -> Reach:
        files = size = 0
        for entry in self._list_files():
            if entry.kind is Kind.FILE:
                files += 1
                size += entry.size
        return Reach(files, size, int(changed))


def _principal(who: str) -> tuple[str, str]:
    """Return the type and id of a principal; those of everyone have no id."""
    if who in _EVERYONE:
        return _EVERYONE[who], ""
    return ("group", who.removeprefix("group:")) if who.startswith("group:") else ("identity", who)


def _name(rule: Rule) -> str:
    kind, principal = str(rule.get("principal_type")), printable(str(rule.get("principal")))
    for name, word in _EVERYONE.items():
        if kind == word:
            return name
    return f"group:{principal}" if kind == "group" else principal


def _has(rule: Rule | None, grant: Grant) -> bool:
    """Return whether a rule gives exactly this permission, until this end."""
    return (
        rule is not None
        and rule.get("permissions") == _PERMISSIONS[grant.permission]
        and _time_of(rule.get("expiration_date")) == grant.until
    )


def _time_text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat()


def _time_of(text: Any) -> datetime | None:
    if not isinstance(text, str) or not re.match(r"\d{4}-", text):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
