"""Share userfiles with the members of a project of a CBRAIN portal.

A userfile is in one project, whose members can read it, and change it if it is `group_writable` (CBRAIN API, `/userfiles/{id}`).
"""

from __future__ import annotations

from collections.abc import Sequence

from hibali.errors import RefusedError, UsageError
from hibali.text import nearest, printable
from hibali_plugins.cbrain.portal import OWN_GROUP
from hibali_plugins.cbrain.records import Group, Userfile
from hibali_plugins.cbrain.store import PortalStore
from transfers.model.entry import Entry
from transfers.model.sharing import Grant, ListedGrant, Permission, Reach, Sharing

_PREFIX = "project:"


class ProjectSharing(Sharing):
    """The access to a userfile, or to all userfiles of a folder of a data provider."""

    def __init__(self, store: PortalStore) -> None:
        self._portal = store.portal
        self._find = store.shared_userfiles

    def person(self, text: str) -> str:
        """See Sharing: the name of a project that you are in."""
        return f"{_PREFIX}{self._project(text).name}"

    def _project(self, who: str) -> Group:
        name = who.removeprefix(_PREFIX)
        groups = self._portal.client.groups()
        for each in groups:
            if each.name == name and each.type != OWN_GROUP:
                return each
        similar = nearest(name, [each.name for each in groups if each.type != OWN_GROUP])
        raise UsageError(
            "no-such-project",
            f"you are in no project {printable(name)!r} of this portal",
            subject=self._portal.site.name,
            hint=f"Did you mean --with 'project:{printable(similar)}'?"
            if similar
            else "Make a project on the portal.",
        )

    def plan(self, place: Entry, grant: Grant) -> Reach:
        """See Sharing."""
        del place
        return self._change(grant, write=False)

    def add(self, place: Entry, grant: Grant) -> Reach:
        """See Sharing."""
        del place
        return self._change(grant, write=True)

    def remove(self, place: Entry, who: str) -> Reach:
        """See Sharing: userfiles of the project go back to the one that new userfiles get."""
        del place
        project, own = self._project(who), self._portal.group_id()
        if project.id == own:
            raise RefusedError(
                "not-shared",
                "this is the project of all your new userfiles, as the site's cbrain.project says",
                subject=self._portal.site.name,
                hint="Move the files to another project on the portal.",
            )
        mine = [each for each in self._find() if each.user_id == self._portal.user_id()]
        changed = [each for each in mine if each.group_id == project.id]
        for each in changed:
            self._portal.client.share_userfile(each.id, own, writable=False)
        return Reach(len(mine), _size(mine), len(changed))

    def people(self, place: Entry) -> list[ListedGrant]:
        """See Sharing: the projects of the userfiles, besides the users' own ones."""
        del place
        names = {each.id: each for each in self._portal.client.groups()}
        found: dict[str, Permission] = {}
        for each in self._find():
            group = names.get(each.group_id) if each.group_id is not None else None
            if group is None or group.type == OWN_GROUP:
                continue
            who = f"{_PREFIX}{printable(group.name)}"
            if each.group_writable or who not in found:
                found[who] = Permission.WRITE if each.group_writable else Permission.READ
        return [ListedGrant(Grant(who, permission)) for who, permission in sorted(found.items())]

    def _change(self, grant: Grant, *, write: bool) -> Reach:
        project, own, me = self._project(grant.who), self._portal.group_id(), self._portal.user_id()
        writable = grant.permission is Permission.WRITE
        userfiles, problems, changed = list(self._find()), [], 0
        for each in userfiles:
            path = each.name.encode("utf-8", "surrogateescape")
            if each.user_id != me:
                problems.append((path, "denied", "it belongs to another user"))
            elif each.group_id not in {own, project.id}:
                problems.append(
                    (path, "in-another-project", "it is shared with another project, and can be in one only")
                )
            elif (each.group_id, each.group_writable) != (project.id, writable):
                changed += 1
                if write:
                    self._portal.client.share_userfile(each.id, project.id, writable=writable)
        return Reach(len(userfiles), _size(userfiles), changed, len(problems), tuple(problems[:100]))


def _size(userfiles: Sequence[Userfile]) -> int:
    return sum(each.size or 0 for each in userfiles)
