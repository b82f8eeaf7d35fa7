"""Share files of a POSIX filesystem by access control lists, through the agent."""

from __future__ import annotations

import re
from typing import Any

from hibali.errors import UsageError
from hibali.text import printable
from transfers.agent import protocol
from transfers.model.entry import Entry
from transfers.model.sharing import Grant, ListedGrant, Permission, Reach, Sharing
from transfers.model.units import problem_from
from transfers.stores.agent_store import PosixStore

_PERSON = re.compile(r"(?:(user|group):)?([A-Za-z0-9_][A-Za-z0-9_.@\\+-]{0,255})")


class AgentSharing(Sharing):
    """The access to a file or folder at an absolute path."""

    def __init__(self, store: PosixStore) -> None:
        self._connection = store.connection
        self._path = store.root_path

    def person(self, text: str) -> str:
        """See Sharing; a name alone is an account's."""
        found = _PERSON.fullmatch(text)
        if found is None:
            raise UsageError(
                "not-a-person",
                "this is not the name of an account or group",
                subject=printable(text),
                hint="Use --with NAME, --with user:NAME or --with group:NAME.",
            )
        return f"{found[1] or 'user'}:{found[2]}"

    def plan(self, place: Entry, grant: Grant) -> Reach:
        """See Sharing."""
        return self._change(place, "plan", grant.who, grant.permission)

    def add(self, place: Entry, grant: Grant) -> Reach:
        """See Sharing."""
        return self._change(place, "set", grant.who, grant.permission)

    def remove(self, place: Entry, who: str) -> Reach:
        """See Sharing."""
        return self._change(place, "set", who, "none")

    def people(self, place: Entry) -> list[ListedGrant]:
        """See Sharing."""
        del place
        reply = self._request(access="list")
        with self._connection.understanding():
            return [
                ListedGrant(Grant(printable(who), Permission.WRITE if writes else Permission.READ))
                for who, writes in reply.header["people"]
            ]

    def _change(self, place: Entry, access: str, who: str, permission: str) -> Reach:
        del place
        reply = self._request(access=access, who=who, permission=permission)
        with self._connection.understanding():
            header = reply.header
            found = [(path, problem_from(problem)) for path, problem in header["problems"]]
            problems = tuple((protocol.bytes_of(path), each.code, each.message) for path, each in found)
            return Reach(
                int(header["files"]),
                int(header["bytes"]),
                int(header["changed"]),
                int(header["failures"]),
                problems,
                tuple(protocol.bytes_of(folder) for folder in header["blocked"]),
            )

    def _request(self, **details: Any) -> protocol.Frame:
        return self._connection.request("access", path=protocol.text_of(self._path), **details)
