"""Call the API of a CBRAIN portal: each method sends exactly the parameters that the API names.

A portal bans an address that sends three parameters it does not expect, so no caller can add any. Lists come in
pages; page and size are always sent together, because the portal remembers them for the session. A list that
changes while it is read can repeat or omit entries; repeated ones are dropped here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from hibali.config.model import Site
from hibali.errors import AccessError, IncompleteError, NotFoundError, RefusedError, UsageError
from hibali.events import Listener, ignore
from hibali.http.client import Bytes, Receive
from hibali.http.rest import Call
from hibali_plugins.cbrain.names import LEGAL_NAME
from hibali_plugins.cbrain.records import (
    Activity,
    DataProvider,
    Deletion,
    Group,
    Operated,
    ProviderState,
    Readable,
    Registration,
    SessionInfo,
    Task,
    Tool,
    ToolConfig,
    Userfile,
    not_understood,
    read_list,
    read_record,
)
from hibali_plugins.cbrain.requests import MOST_ANSWER, Portal
from hibali_plugins.cbrain.session import Session

PAGE = 1000  # records; the largest page that the portal gives
REGISTERED_AT_ONCE = 100  # names of one request: the portal reads the size of each before it answers
DELETED_AT_ONCE = 100
_MOST_PAGES = 10_000
_MARKED = frozenset({302, 303})  # portals redirect to the page of the list
_MOST_DESCRIPTOR = 4 * 1024 * 1024


class _Numbered(Readable, Protocol):
    @property
    def id(self) -> int: ...


Record = TypeVar("Record", bound=_Numbered)


class CbrainClient:
    """One portal; thread-safe. Close it at the end.

    Methods raise `AccessError` for a rejected login, `NotFoundError` for a record that does not exist or is not
    yours, `RefusedError` with the portal's reason, `TryLaterError` where it cannot be reached or is busy, and
    `IncompleteError("bad-answer")` for an answer that is not understood. Only `create_task` and `upload` must
    not be repeated after a `TryLaterError` without looking for their result.
    """

    def __init__(self, site: Site, *, session: Session | None = None, on_event: Listener = ignore) -> None:
        self.subject = site.name
        self._portal = Portal(site, (session or Session(site)).authorization(), on_event)

    def close(self) -> None:
        """Close all connections."""
        self._portal.close()

    # Sessions and projects

    def user_id(self) -> int:
        """Return the id of the user who is logged in."""
        return self._portal.record(SessionInfo, "/session").user_id

    def groups(self) -> list[Group]:
        """Return the projects of the user."""
        return list(self._pages("/groups", Group))

    # Userfiles

    def userfiles(self) -> Iterator[Userfile]:
        """Yield all userfiles that the user can read, sorted by name; the API cannot select among them."""
        return self._pages("/userfiles", Userfile)

    def userfile(self, userfile_id: int) -> Userfile:
        """Return one userfile."""
        subject = self._named("userfile", userfile_id)
        return self._portal.record(Userfile, f"/userfiles/{userfile_id}", subject=subject)

    def receive_content(
        self, userfile_id: int, receive: Receive, *, limit: int, restart: Callable[[], None]
    ) -> None:
        """Receive the content of a single file; for a collection the portal answers that it does not exist.

        The API has no ranges. `restart` is called before each attempt.
        """
        subject = self._named("userfile", userfile_id)
        call = Call("GET", f"/userfiles/{userfile_id}/content", headers={"Accept": "*/*"}, subject=subject)
        self._portal.receive(call, receive, limit=limit, restart=restart)

    def receive_archive(
        self, userfile_id: int, receive: Receive, *, limit: int, restart: Callable[[], None]
    ) -> None:
        """Receive a collection as a tar archive, compressed with gzip, with its name as the only folder.

        A portal refuses more than 400 megabytes. `restart` is called before each attempt.
        """
        subject = self._named("userfile", userfile_id)
        content = {"file_ids": [str(userfile_id)]}
        call = Call.with_json("POST", "/userfiles/download", content, subject=subject)
        answer = self._portal.receive(call, receive, limit=limit, restart=restart)
        if answer.headers.get("content-type", "").startswith("application/json"):
            # The reason comes with status 200 in place of the archive.
            raise RefusedError(
                "collection-not-sent",
                "the portal does not send this collection as an archive; it sends at most 400 megabytes",
                subject=subject,
                hint=f"Read its files where the data provider stores them. See: hibali sites show {self.subject}",
            )

    def upload(
        self,
        name: str,
        pieces: Iterable[Bytes],
        size: int,
        *,
        provider_id: int,
        group_id: int,
        file_type: str,
    ) -> None:
        """Upload a file as a new userfile. The portal copies it afterwards, and does not say its id.

        Raises `RefusedError` for a name that the provider has. After a `TryLaterError` the portal may have it.
        """
        self._portal.send_form(
            "/userfiles",
            [
                ("data_provider_id", provider_id),
                ("userfile[group_id]", group_id),
                ("file_type", file_type),
            ],
            ("upload_file", _legal(name)),
            pieces,
            size,
            subject=name,
        )

    def describe_userfile(self, userfile_id: int, description: str) -> None:
        """Set the description of a userfile."""
        self._update_userfile(userfile_id, {"description": description})

    def retype_userfile(self, userfile_id: int, file_type: str) -> None:
        """Set the type of a userfile."""
        self._update_userfile(userfile_id, {"type": file_type})

    def resize_userfile(self, userfile_id: int, size: int) -> None:
        """Set the size of a userfile, whose content was replaced at the data provider."""
        self._update_userfile(userfile_id, {"size": size})

    def share_userfile(self, userfile_id: int, group_id: int, *, writable: bool) -> None:
        """Move a userfile to another project, and let its members write it or not."""
        self._update_userfile(userfile_id, {"group_id": group_id, "group_writable": int(writable)})

    def _update_userfile(self, userfile_id: int, fields: Mapping[str, str | int]) -> None:
        self._portal.change(
            "PUT",
            f"/userfiles/{userfile_id}",
            {"userfile": dict(fields)},
            subject=self._named("userfile", userfile_id),
        )

    def delete_userfiles(self, userfile_ids: Sequence[int]) -> Deletion:
        """Delete userfiles and their contents, at most `DELETED_AT_ONCE`: since 2024-05 later, by a background activity.

        Unknown ids are ignored; if there are no others, the portal refuses (status 400).
        """
        assert 0 < len(userfile_ids) <= DELETED_AT_ONCE
        answer = self._portal.change(
            "DELETE", "/userfiles/delete_files", {"file_ids": [str(each) for each in userfile_ids]}
        )
        return read_record(Deletion, self._portal.json_of(answer), self.subject)

    def mark_newer(self, userfile_ids: Sequence[int]) -> None:
        """Let the portal drop its copies of userfiles whose contents changed at the data provider."""
        self._portal.change(
            "POST",
            "/userfiles/sync_multiple",
            {"file_ids": [str(each) for each in userfile_ids], "operation": "all_newer"},
            accept=_MARKED,
        )

    # Data providers

    def data_providers(self) -> list[DataProvider]:
        """Return all data providers that the user can use."""
        return list(self._pages("/data_providers", DataProvider))

    def is_alive(self, provider_id: int) -> bool:
        """Return whether the portal can reach a data provider."""
        return self._portal.record(ProviderState, f"/data_providers/{provider_id}/is_alive").is_alive

    def activity(self, activity_id: int) -> Activity | None:
        """Return a background activity; None where the portal does not tell of them."""
        try:
            return self._portal.record(Activity, f"/background_activities/{activity_id}")
        except (NotFoundError, RefusedError, AccessError):
            return None

    def register(self, provider_id: int, types: Mapping[str, str], group_id: int) -> Registration:
        """Register names that a data provider stores, at most `REGISTERED_AT_ONCE`, with their types.

        Names that are registered already stay as they are. Portals of 2025 and later register the others afterwards, by a background
        activity; earlier ones do so at once, and refuse a name without saying why.
        """
        assert 0 < len(types) <= REGISTERED_AT_ONCE
        answer = self._portal.change(
            "POST",
            f"/data_providers/{provider_id}/register",
            {
                "basenames": list(types),
                "filetypes": [f"{file_type}-{name}" for name, file_type in types.items()],
                "other_group_id": group_id,
            },
        )
        return read_record(Registration, self._portal.json_of(answer), self.subject)

    # Tools and tasks

    def tools(self) -> list[Tool]:
        """Return all tools that the user can use."""
        return list(self._pages("/tools", Tool))

    def tool_configs(self) -> list[ToolConfig]:
        """Return all versions of tools, at all execution servers, that the user can use."""
        return list(self._pages("/tool_configs", ToolConfig))

    def boutiques_descriptor(self, tool_config_id: int) -> dict[str, Any] | None:
        """Return the Boutiques descriptor of a tool config, None if it has none. This needs no login."""
        found = self._portal.get(
            f"/tool_configs/{tool_config_id}/boutiques_descriptor",
            subject=self._named("tool config", tool_config_id),
            most=_MOST_DESCRIPTOR,
            public=True,
        )
        if not isinstance(found, dict):
            raise not_understood("the descriptor is not a JSON object", self.subject)
        return found if found.get("name") else None  # tools without a descriptor have an empty one

    def tasks(self) -> Iterator[Task]:
        """Yield all tasks of the user, recently changed ones first; the API cannot select among them."""
        return self._pages("/tasks", Task)

    def task(self, task_id: int) -> Task:
        """Return one task."""
        return self._portal.record(Task, f"/tasks/{task_id}", subject=self._named("task", task_id))

    def create_task(
        self,
        *,
        tool_config_id: int,
        results_provider_id: int,
        group_id: int,
        description: str,
        params: Mapping[str, Any],
    ) -> list[Task]:
        """Create a task, or one for each element of a list of files, and return them.

        `description` is kept by the portal, so it marks the tasks. After a `TryLaterError` the portal may have
        created them: search `tasks` for the description before it is sent again.
        """
        content = {
            "cbrain_task": {
                "tool_config_id": tool_config_id,
                "results_data_provider_id": results_provider_id,
                "group_id": group_id,
                "description": description,
                "params": dict(params),
            }
        }
        subject = self._named("tool config", tool_config_id)
        call = Call.with_json("POST", "/tasks", content, subject=subject, most=MOST_ANSWER)
        answer = self._portal.create(call)
        return read_list(Task, self._portal.json_of(answer), self.subject)

    def terminate_tasks(self, task_ids: Sequence[int]) -> Operated:
        """Let the portal end tasks; their records and files stay."""
        answer = self._portal.change(
            "POST", "/tasks/operation", {"operation": "terminate", "tasklist": list(task_ids)}
        )
        if not answer.body.strip():  # portals before 6.3 accept without a body
            return Operated(tuple(task_ids), {}, {})
        return read_record(Operated, self._portal.json_of(answer), self.subject)

    # Answers

    def _pages(self, path: str, kind: type[Record]) -> Iterator[Record]:
        """Yield the records of all pages, each id once. A page without a new record is the last one."""
        seen: set[int] = set()
        for page in range(1, _MOST_PAGES + 1):
            answer = self._portal.get(path, query={"page": page, "per_page": PAGE})
            records = read_list(kind, answer, self.subject)
            new = [each for each in records if each.id not in seen]
            seen.update(each.id for each in new)
            yield from new
            # A portal may give smaller pages than requested, so that a short page proves nothing.
            if not new:
                return
        raise IncompleteError(
            "bad-answer", f"the portal's list has more than {_MOST_PAGES} pages", subject=self.subject
        )

    def _named(self, what: str, number: int) -> str:
        return f"{self.subject}: {what} {number}"


def _legal(name: str) -> str:
    """Return a name that the portal accepts, and that needs no quotes in a form."""
    if LEGAL_NAME.fullmatch(name) is None:
        raise UsageError("unsafe-name", "the portal does not accept this name", subject=name)
    return name
