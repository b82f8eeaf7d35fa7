"""Find data providers, projects and userfiles of a portal by name.

The API cannot select userfiles, so all of them are listed to find one. Answers are kept for the life of the
object; userfiles are listed again when they must be current.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hibali.config.model import Site
from hibali.errors import NotFoundError, RefusedError, TryLaterError, UsageError
from hibali.retry import growing_intervals, pause
from hibali.text import nearest, printable
from hibali_plugins.cbrain.client import CbrainClient
from hibali_plugins.cbrain.records import DataProvider, Deletion, Group, Userfile
from hibali_plugins.cbrain.settings import CbrainSettings

OWN_GROUP = "UserGroup"  # the type of the project that every user has alone
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0


class Snapshot(NamedTuple):
    """The userfiles of a portal by provider and path, and the time when their listing started."""

    began: float
    userfiles: Mapping[int, Mapping[str, Userfile]]

    def of(self, provider_id: int) -> Mapping[str, Userfile]:
        """Return the userfiles of a provider by path."""
        return self.userfiles.get(provider_id, {})


class Portal:
    """The records of one portal; thread-safe."""

    def __init__(self, client: CbrainClient, site: Site) -> None:
        self.client = client
        self.site = site
        self.settings: CbrainSettings = site.own
        self._lock = threading.Lock()
        self._listing = threading.Lock()
        self._providers: dict[str, DataProvider] | None = None
        self._user_id: int | None = None
        self._group_id: int | None = None
        self._snapshot: Snapshot | None = None

    def providers(self) -> Mapping[str, DataProvider]:
        """Return the data providers by name."""
        with self._lock:
            if self._providers is None:
                self._providers = {each.name: each for each in self.client.data_providers()}
            return self._providers

    def provider(self, name: str) -> DataProvider:
        """Return a data provider. Raise `NotFoundError` with a similar name."""
        providers = self.providers()
        if name in providers:
            return providers[name]
        similar = nearest(name, providers)
        known = ", ".join(f"@{each}" for each in sorted(providers)) or "none"
        raise NotFoundError(
            "no-such-provider",
            f"the portal has no data provider @{printable(name)} that you can use",
            subject=self.site.name,
            hint=f"Did you mean @{similar}?" if similar else f"Data providers: {printable(known)}.",
        )

    def user_id(self) -> int:
        """Return the id of the user."""
        with self._lock:
            if self._user_id is None:
                self._user_id = self.client.user_id()
            return self._user_id

    def group_id(self) -> int:
        """Return the project of new userfiles: the one in the settings, else the user's own."""
        with self._lock:
            if self._group_id is None:
                self._group_id = self._find_group().id
            return self._group_id

    def _find_group(self) -> Group:
        groups = self.client.groups()
        wanted = self.settings.project
        if wanted is not None:
            found = [each for each in groups if each.name == wanted]
            if not found:
                similar = nearest(wanted, [each.name for each in groups])
                raise UsageError(
                    "no-such-project",
                    f"you are in no project {wanted!r} of this portal",
                    subject=self.site.name,
                    hint=f"Did you mean {similar!r}?" if similar else "Correct the site's cbrain.project.",
                )
            return found[0]
        own = [each for each in groups if each.type == OWN_GROUP]
        if len(own) != 1:
            raise UsageError(
                "no-such-project",
                "the portal does not say which project is your own",
                subject=self.site.name,
                hint="Set the site's cbrain.project.",
            )
        return own[0]

    def snapshot(self, since: float) -> Snapshot:
        """Return a listing that started at `since` (`time.monotonic`) or later; threads share one that did."""
        with self._listing:
            if self._snapshot is None or self._snapshot.began < since:
                began = time.monotonic()
                self._snapshot = Snapshot(began, self._by_path())
            return self._snapshot

    def _by_path(self) -> dict[int, dict[str, Userfile]]:
        """Return all userfiles; where several have one name, the user's own, else the oldest."""
        me = self.user_id()
        found: dict[int, dict[str, Userfile]] = {}
        for each in self.client.userfiles():
            path = f"{each.browse_path.strip('/')}/{each.name}".lstrip("/")
            known = found.setdefault(each.provider_id, {}).get(path)
            if known is None or _precedence(each, me) < _precedence(known, me):
                found[each.provider_id][path] = each
        return found

    def listed(self, provider_id: int) -> Mapping[str, Userfile]:
        """Return the current userfiles of a provider by path."""
        return self.snapshot(time.monotonic()).of(provider_id)

    def find(self, provider_id: int, name: str) -> Userfile | None:
        """Return the current userfile of a name, or None."""
        return self.listed(provider_id).get(name)

    def appeared(self, provider_id: int, name: str, seconds: float) -> Userfile | None:
        """Return the userfile of a name, waiting up to `seconds` until there is one."""
        deadline = time.monotonic() + seconds
        pauses = growing_intervals(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            found = self.find(provider_id, name)
            wait = pauses.next_pause()
            if found is not None or time.monotonic() + wait > deadline:
                return found
            pause(wait)

    def copied(self, userfile: Userfile) -> Userfile:
        """Return a userfile when the portal has copied its content, which it does after an upload.

        Raises `TryLaterError` after the time in the settings, and `NotFoundError` if it was deleted meanwhile.
        """
        deadline = time.monotonic() + self.settings.copy_seconds
        pauses = growing_intervals(_FIRST_PAUSE, _LONGEST_PAUSE)
        while userfile.size is None:
            wait = pauses.next_pause()
            if time.monotonic() + wait > deadline:
                raise TryLaterError(
                    "not-copied-yet",
                    f"the portal has not stored the upload after {self.settings.copy_seconds:.0f} s",
                    subject=userfile.name,
                    hint="Run the same command again later; it finds the upload.",
                    transient=False,
                )
            pause(wait)
            userfile = self.client.userfile(userfile.id)
        return userfile

    def delete(self, userfile: Userfile) -> None:
        """Delete a userfile with its content. Raise `RefusedError` if the portal does not."""
        if not self.delete_all(userfile.provider_id, [userfile.id]):
            raise RefusedError("not-removed", "the portal did not delete it", subject=userfile.name)

    def delete_all(self, provider_id: int, ids: Sequence[int]) -> set[int]:
        """Delete userfiles of a provider, at most `DELETED_AT_ONCE`; return the ids that are gone when the portal has done it."""
        try:
            result = self.client.delete_userfiles(ids)
        except RefusedError:  # it has none of them, or lets this user delete none
            result = Deletion((), (), None)
        if set(ids) <= set(result.deleted):
            return set(ids)

        def present() -> set[int]:
            return {each.id for each in self.listed(provider_id).values()} & set(ids)

        self.await_activity(result.activity, lambda: not present())
        return set(ids) - present()

    def await_activity(self, activity_id: int | None, is_done: Callable[[], bool]) -> tuple[str, ...]:
        """Wait until a background activity has ended, or its effect is seen, up to the time in the settings; return its messages."""
        if activity_id is None:
            return ()
        deadline = time.monotonic() + self.settings.copy_seconds
        pauses = growing_intervals(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            activity = self.client.activity(activity_id)
            if activity is not None and activity.is_over:
                return activity.messages
            if activity is None and is_done():
                return ()
            wait = pauses.next_pause()
            if time.monotonic() + wait > deadline:
                raise TryLaterError(
                    "not-copied-yet",
                    f"the portal has not finished its background activity {activity_id} after {self.settings.copy_seconds:.0f} s",
                    subject=self.site.name,
                    hint="Run the same command again later; it finds what the portal has done.",
                    transient=False,
                )
            pause(wait)


def _precedence(userfile: Userfile, me: int) -> tuple[bool, int]:
    return userfile.user_id != me, userfile.id
