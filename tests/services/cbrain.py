"""Provide a test double of a CBRAIN portal, because the real one (aces/cbrain, Ruby on Rails) cannot run here.

It follows the swagger document 7.0.0 and the recorded requests of the portal's own tests (see cbrain_requests.py), and
for what they do not say the portal's controllers. It proves how hibali deals with such answers, not how a portal
behaves. It runs in the test's process, in threads:

    portal = CbrainDouble(tmp_path)                      # the fixture `cbrain`
    user = portal.add_user("me", "secret")               # with a project of its own
    lab = portal.add_provider("lab")                     # files in a folder; contents=BucketContents(...) for a bucket
    portal.add_userfile(lab, "a.txt", b"..."), portal.add_userfile(lab, "study", {"sub/x": b"..."})
    tool = portal.add_tool("bet", descriptor)            # tool.config_id
    portal.runner = lambda running: {"out": [("result.txt", b"...")]}     # or `command_runner(...)`; see RunningTask
    portal.fail("POST", "/userfiles", LOST)              # kinds of faults: see Fault
    portal.expire_tokens(); portal.address = "192.0.2.7" # a client that comes from another address
    portal.advance(task_id)                              # without it every question about tasks advances them by a step
    portal.refused; portal.requests                      # what it did not accept; "METHOD path" of all requests

Like the portal it copies uploads after it answered: `copy_after` further requests later; registrations and deletions are background
activities that end `background_after` further requests later (with `synchronous` as in portals before 2024-05). It bans an address (also
127.0.0.1, other than the portal) after three unexpected parameters.

| request | the portal's controllers, ca820b2c0 (2026-06-25, 7.0.0), read on 2026-11-27 | the double |
|---|---|---|
| POST /session | a wrong login sleeps 3 s | does not sleep |
| POST /userfiles | 201 {notice}, copied later; 422 {notice} for a name that exists | the same |
| userfiles/ID/content, userfiles/download | the content; archives up to 400 MB, else 200 with {error} | the same |
| DELETE /userfiles/delete_files | since 2024-05 {message, background_activity_id}; 400 {error} if none is accessible | the same; `synchronous` as before |
| POST /userfiles/sync_multiple, all_newer | since 2023-06 200 {notice} | the same |
| POST register | since 2025-05 a background activity; `newly_registered_userfiles` is always []; names without a type are ignored, with a text | the same; `synchronous` as before |
| GET /background_activities/ID | status, items, messages (ids, or reasons of failures); since 2024-06 | the same |
| GET /data_providers | all of them: page and per_page are ignored | the same |
| is_alive | {is_alive} | the same |
| browse, unregister | cached for 60 s unless refresh; in the background | not there: hibali does not use them |
| POST /tasks | a list of tasks; 422 {field: [reasons]} | the same |
| POST /tasks/operation | lists by result, or {message: "No tasks selected"} | the same |
| three unexpected parameters in one request | ban the address, only where the controller declares it | everywhere, also over several requests |
"""

from __future__ import annotations

import http.server
import itertools
import re
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.services.cbrain_contents import Contents, FolderContents, Tree
from tests.services.cbrain_http import Answer, LostAnswer, PortalRequest, handler_of
from tests.services.cbrain_model import (
    BOURREAU,
    CORRUPT,
    DROPPED,
    ENDED,
    EXPIRED,
    GARBAGE,
    LOST,
    SLOW,
    STATUS,
    STEPS,
    WRONG_SIZE,
    Activity,
    Fault,
    Outputs,
    Provider,
    Runner,
    RunningTask,
    Task,
    TaskFailedError,
    Tool,
    User,
    Userfile,
    command_runner,
)
from tests.services.cbrain_requests import allowed
from tests.services.serving import serve_in_thread
from tests.support.shared_dict import SharedDict

__all__ = [
    "BOURREAU",
    "CORRUPT",
    "DROPPED",
    "ENDED",
    "EXPIRED",
    "GARBAGE",
    "LOST",
    "SLOW",
    "STATUS",
    "STEPS",
    "WRONG_SIZE",
    "CbrainDouble",
    "Fault",
    "Outputs",
    "Runner",
    "RunningTask",
    "TaskFailedError",
    "command_runner",
]

_LEGAL = re.compile(r"[a-zA-Z0-9][\w~!@#%^()\-+=:\[\]{},.?]*", re.ASCII)
_TYPES = frozenset(
    [
        "BidsDataset",
        "BidsSubject",
        "CSVFile",
        "CbrainFileList",
        "CivetOutput",
        "DatFile",
        "FileCollection",
        "ImageFile",
        "JsonFile",
        "LogFile",
        "MghFile",
        "MgzFile",
        "MincFile",
        "NiftiFile",
        "SingleFile",
        "TarArchive",
        "TextFile",
        "ZipArchive",
    ]
)
COLLECTIONS = frozenset({"BidsDataset", "BidsSubject", "CivetOutput", "FileCollection"})
PASSWORD = "planted-secret-1"
_MOST_ARCHIVE = 400 * 1024 * 1024
_UNEXPECTED_MOST = 3


def _no_outputs(running: RunningTask) -> Outputs:
    del running
    return {}


@dataclass
class CbrainDouble:
    """A portal; `url` is its address. All methods may be called while it runs."""

    folder: Path
    address: str | None = None  # where requests seem to come from
    copy_after: int = 1
    background_after: int = 3
    synchronous: bool = False
    page_limit: int = 1000
    automatic: bool = True  # questions about tasks advance them
    runner: Runner = _no_outputs
    requests: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    banned: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.users: list[User] = []
        self.providers = SharedDict[int, Provider]()
        self.userfiles = SharedDict[int, Userfile]()
        self.members = SharedDict[int, set[int]]()  # of projects, by their ids
        self.tools: list[Tool] = []
        self.tasks = SharedDict[int, Task]()
        self.groups: dict[int, tuple[str, str, int]] = {1: ("everyone", "EveryoneGroup", 0)}
        self.faults: list[Fault] = []
        self.activities = SharedDict[int, Activity]()
        self.marked_newer: list[int] = []  # ids of `sync_multiple` with `all_newer`
        self._tokens: dict[str, tuple[int, str]] = {}
        self._unexpected: dict[str, int] = {}
        self._ids = itertools.count(100)
        self._clock = itertools.count(1)
        self._lock = threading.RLock()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler_of(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        serve_in_thread(self._server)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    # What a test prepares

    def add_user(self, login: str = "me", password: str = PASSWORD) -> User:
        with self._lock:
            group_id = next(self._ids)
            user = User(next(self._ids), login, password, group_id)
            self.groups[group_id] = (login, "UserGroup", user.id)
            self.members[group_id] = {user.id}
            self.users.append(user)
            return user

    def add_group(self, name: str, user: User, *others: User) -> int:
        with self._lock:
            group_id = next(self._ids)
            self.groups[group_id] = (name, "WorkGroup", user.id)
            self.members[group_id] = {each.id for each in (user, *others)}
            return group_id

    def _sees(self, user: User | None, userfile: Userfile) -> bool:
        """Return whether a user can see a userfile: its owner, and the members of its project."""
        if user is None or userfile.group_id == 1 or userfile.user_id == user.id:
            return True
        return userfile.group_id not in self.members or user.id in self.members[userfile.group_id]

    def add_provider(
        self,
        name: str,
        *,
        contents: Contents | None = None,
        kind: str = "FlatDirSshDataProvider",
        **more: Any,
    ) -> Provider:
        with self._lock:
            number = next(self._ids)
            user = self.users[0]
            files = contents or FolderContents(self.folder / f"provider-{number}")
            made = Provider(
                number, name, kind, user.id, user.group_id, more.pop("browsable", True), files, **more
            )
            self.providers[number] = made
            return made

    def add_userfile(self, provider: Provider, name: str, content: bytes | Tree, kind: str = "") -> Userfile:
        """Store and register a file, or a collection."""
        with self._lock:
            provider.contents.write(name, content)
            single = isinstance(content, bytes)
            made = self._new_userfile(
                self.users[0],
                provider,
                name,
                kind or ("SingleFile" if single else "FileCollection"),
                self.users[0].group_id,
            )
            made.size = len(content) if isinstance(content, bytes) else sum(map(len, content.values()))
            made.files = 1 if isinstance(content, bytes) else len(content)
            return made

    def register(self, provider: Provider, name: str) -> Userfile:
        """Register a file or a folder that the provider has."""
        with self._lock:
            user = self.users[0]
            size, is_folder = provider.contents.names()[name]
            kind = "FileCollection" if is_folder else "SingleFile"
            made = self._new_userfile(user, provider, name, kind, user.group_id)
            made.size = None if is_folder else size
            return made

    def add_tool(self, name: str, descriptor: dict[str, Any] | None = None) -> Tool:
        with self._lock:
            made = Tool(next(self._ids), next(self._ids), name, descriptor or {})
            self.tools.append(made)
            return made

    def fail(self, method: str, path: str, kind: str, **more: Any) -> Fault:
        with self._lock:
            self.faults.append(Fault(method, path, kind, **more))
            return self.faults[-1]

    def expire_tokens(self) -> None:
        with self._lock:
            self._tokens.clear()

    def advance(self, task_id: int) -> str:
        """Let a task reach its next state, which is returned."""
        with self._lock:
            task = self.tasks[task_id]
            if task.status not in ENDED:
                self._step(task)
            return task.status

    def named(self, provider: Provider) -> dict[str, list[Userfile]]:
        """Return the registered userfiles of a provider by name."""
        with self._lock:
            found: dict[str, list[Userfile]] = {}
            for each in self.userfiles.values():
                if each.provider is provider:
                    found.setdefault(each.name, []).append(each)
            return found

    def settle(self) -> None:
        """Copy all uploads now."""
        with self._lock:
            for userfile in self.userfiles.values():
                self._copy(userfile)

    # Requests

    def answer(self, request: PortalRequest) -> Answer:
        """Return the answer; raises `LostAnswer`."""
        with self._lock:
            self.requests.append(f"{request.method} {request.path}")
            fault = next((each for each in self.faults if each.occurs(request.method, request.path)), None)
            if fault is not None and fault.kind == EXPIRED:
                self._tokens.clear()
        if fault is not None and fault.kind == DROPPED:
            raise LostAnswer
        if fault is not None and fault.kind == SLOW:
            threading.Event().wait(fault.seconds)
        if fault is not None and fault.kind == STATUS:
            more = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
            return Answer(fault.status, {"error": "planted"}, **more)
        with self._lock:
            self._work_in_background()
            try:
                self._check(request)
                self._dispatch(request, fault)
            except Answer as answer:
                found = answer
            else:
                found = Answer(404, {"error": "unknown"})
        if fault is not None and fault.kind == LOST:
            raise LostAnswer
        if fault is not None and fault.kind == GARBAGE:
            return Answer(200, b"<html>", "text/html")
        return found

    def _work_in_background(self) -> None:
        for userfile in self.userfiles.values():
            if userfile.waiting is not None and userfile.waiting[0] <= len(self.requests):
                self._copy(userfile)
        for activity in self.activities.values():
            if activity.status == "InProgress" and activity.due <= len(self.requests):
                activity.run()

    def _check(self, request: PortalRequest) -> None:
        """Check the address, the parameters and the token."""
        if request.address in self.banned:
            raise Answer(401)
        entry = allowed(request.method, request.path)
        if entry is None:
            self.refused.append(f"{request.method} {request.path}")
            raise Answer(400, {"error": "not available to API"})
        unexpected = entry.unexpected(request.query, request.body)
        if unexpected:
            self.refused.append(f"{request.method} {request.path}: {', '.join(unexpected)}")
            count = self._unexpected.get(request.address, 0) + len(unexpected)
            self._unexpected[request.address] = count
            if count >= _UNEXPECTED_MOST:
                self.banned.add(request.address)
            raise Answer(401 if count >= _UNEXPECTED_MOST else 400)
        public = request.path.endswith("/boutiques_descriptor") or (request.method, request.path) == (
            "POST",
            "/session",
        )
        known = self._tokens.get(request.token)
        if known is not None and known[1] == request.address:
            request.user = next(user for user in self.users if user.id == known[0])
        elif not public:
            raise Answer(401)

    def _dispatch(self, request: PortalRequest, fault: Fault | None) -> None:
        first, *rest = request.path.strip("/").split("/")
        if first == "session":
            self._session(request)
        elif first == "groups":
            assert request.user is not None
            own = [number for number in self.groups if number == 1 or request.user.id in self.members[number]]
            self._page(request, [self._group(number) for number in own])
        elif first == "userfiles":
            self._userfiles(request, rest, fault)
        elif first == "data_providers":
            self._data_providers(request, rest)
        elif first == "background_activities":
            found = self.activities.get(request.numbers[0])
            raise Answer(404) if found is None else Answer(200, found.record())
        elif first in {"tools", "tool_configs"}:
            self._tools(request, first, rest)
        elif first == "tasks":
            self._tasks(request, rest)

    def _page(self, request: PortalRequest, records: list[dict[str, Any]]) -> None:
        page, size = int(request.query.get("page", 1)), int(request.query.get("per_page", 25))
        size = min(max(size, 1), self.page_limit)
        raise Answer(200, records[(page - 1) * size : page * size])

    def _session(self, request: PortalRequest) -> None:
        if request.method == "POST":
            given = request.body.get("login"), request.body.get("password")
            user = next((each for each in self.users if (each.login, each.password) == given), None)
            if user is None:
                raise Answer(401)
            token = secrets.token_hex(16)
            self._tokens[token] = (user.id, request.address)
            raise Answer(200, {"user_id": user.id, "cbrain_api_token": token})
        assert request.user is not None
        if request.method == "DELETE":
            del self._tokens[request.token]
            raise Answer(200)
        raise Answer(200, {"user_id": request.user.id, "cbrain_api_token": request.token})

    def _group(self, number: int) -> dict[str, Any]:
        name, kind, creator = self.groups[number]
        return {
            "id": number,
            "name": name,
            "description": None,
            "type": kind,
            "creator_id": creator,
            "invisible": False,
        }

    # Userfiles

    def _new_userfile(self, user: User, provider: Provider, name: str, kind: str, group_id: int) -> Userfile:
        own = user.group_id if group_id not in self.groups or group_id == 1 else group_id
        made = Userfile(next(self._ids), name, kind, user.id, own, provider)
        self.userfiles[made.id] = made
        return made

    def _copy(self, userfile: Userfile) -> None:
        if userfile.waiting is not None:
            content = userfile.waiting[1]
            userfile.waiting = None
            userfile.provider.contents.write(userfile.name, content)
            userfile.size, userfile.files = len(content), 1

    def _userfiles(self, request: PortalRequest, rest: list[str], fault: Fault | None) -> None:
        if not rest and request.method == "GET":
            self._page(
                request,
                [
                    each.record()
                    for each in sorted(self.userfiles.values(), key=lambda each: each.name)
                    if self._sees(request.user, each)
                ],
            )
        if not rest:
            self._upload(request, fault)
        if rest == ["download"]:
            self._download([int(each) for each in request.body["file_ids"]])
        if rest == ["sync_multiple"]:
            self.marked_newer += [int(each) for each in request.body["file_ids"]]
            raise Answer(200, {"notice": "Marked 0 files as newer on provider"})
        if rest == ["delete_files"]:
            self._delete([int(each) for each in request.body["file_ids"]])
        userfile = self.userfiles.get(request.numbers[0])
        if userfile is None or not self._sees(request.user, userfile):
            raise Answer(404, {"error": "Couldn't find Userfile"})
        if rest[1:] == ["content"]:
            if userfile.type in COLLECTIONS or userfile.size is None:
                raise Answer(404)
            raise Answer(200, userfile.provider.contents.read(userfile.name), "application/octet-stream")
        if request.method == "PUT":
            for name, value in request.body["userfile"].items():
                setattr(userfile, {"num_files": "files"}.get(name, name), value)
            raise Answer(200)
        raise Answer(200, userfile.record())

    def _upload(self, request: PortalRequest, fault: Fault | None) -> None:
        assert request.user is not None
        if request.file is None or "userfile[group_id]" not in request.body:
            raise Answer(422)
        name, content = request.file
        provider = self.providers.get(int(request.body["data_provider_id"]))
        taken = provider is not None and name in self.named(provider)
        reason = (
            "Data provider must exist" if provider is None else "Name has already been taken" if taken else ""
        )
        reason = reason or ("" if _LEGAL.fullmatch(name) else "Name contains invalid characters")
        if reason or provider is None:
            raise Answer(422, {"notice": f"File '{name}' could not be added.\n{reason}.\n"})
        kind = request.body.get("file_type", "")
        made = self._new_userfile(
            request.user,
            provider,
            name,
            kind if kind in _TYPES else "SingleFile",
            int(request.body["userfile[group_id]"]),
        )
        if fault is not None and fault.kind == WRONG_SIZE:
            content = content[:-1]
        if fault is not None and fault.kind == CORRUPT:
            content = bytes([content[0] ^ 1]) + content[1:]
        made.waiting = (len(self.requests) + self.copy_after, content)
        raise Answer(201, {"notice": "File Uploaded"})

    def _download(self, ids: list[int]) -> None:
        userfile = self.userfiles.get(ids[0])
        if userfile is None:
            raise Answer(404)
        contents = userfile.provider.contents
        if userfile.type not in COLLECTIONS:
            raise Answer(200, contents.read(userfile.name), "application/octet-stream")
        if (userfile.size or 0) > _MOST_ARCHIVE:
            raise Answer(
                200, {"error": "You cannot download data that exceeds 400 megabytes using a browser.\n"}
            )
        raise Answer(200, contents.archive(userfile.name), "application/gzip")

    def _delete(self, ids: list[int]) -> None:
        known = [number for number in ids if number in self.userfiles]
        if not known:
            raise Answer(400, {"error": "No appropriate files selected to delete"})

        def delete(item: object) -> str:
            gone = self.userfiles.pop(int(str(item)), None)
            if gone is not None:
                gone.provider.contents.delete(gone.name)
            return "" if gone is not None else "Skipped"

        activity = self._begin_activity(known, delete)
        if self.synchronous:
            activity.run()
            listed = {
                "unregistered_list": [],
                "deleted_list": sorted(known),
                "failed_list": {},
                "error": None,
            }
            raise Answer(200, listed)
        notice = "Your files are being deleted in background."
        raise Answer(200, {"message": notice, "background_activity_id": activity.number})

    def _begin_activity(self, items: Sequence[object], process: Callable[[object], str]) -> Activity:
        made = Activity(next(self._ids), items, process, len(self.requests) + self.background_after)
        self.activities[made.number] = made
        return made

    # Data providers

    def _data_providers(self, request: PortalRequest, rest: list[str]) -> None:
        if not rest:
            raise Answer(
                200, [each.record() for each in self.providers.values()]
            )  # page and per_page are ignored
        provider = self.providers.get(request.numbers[0])
        if provider is None:
            raise Answer(404)
        action = rest[1] if len(rest) > 1 else ""
        if not action:
            raise Answer(200, provider.record())
        if action == "is_alive":
            raise Answer(200, {"is_alive": provider.online})
        if not provider.browsable:
            raise Answer(403, {"error": f"You cannot {action} files from this provider."})
        self._register_names(request, provider, request.body.get("basenames") or [])

    def _register_names(self, request: PortalRequest, provider: Provider, names: list[str]) -> None:
        assert request.user is not None
        pairs = (re.fullmatch(r"(\w+)-(\S+)", each) for each in request.body.get("filetypes") or [])
        types = {found[2]: found[1] for found in pairs if found}
        known, user = self.named(provider), request.user
        items = [name for name in names if name not in known and types.get(name)]
        untyped = ", ".join(name for name in names if not types.get(name))
        group_id = int(request.body.get("other_group_id") or 0)

        stored: dict[str, tuple[int, bool]] = {}

        def register(item: object) -> str:
            """Register a name as the portal's background worker does; return the reason if it fails."""
            name = str(item)
            if name in self.named(provider):
                return "Name has already been taken"
            if types[name] not in _TYPES or not _LEGAL.fullmatch(name):
                return (
                    "Type is not a valid file type"
                    if types[name] not in _TYPES
                    else "Name contains invalid characters"
                )
            if not stored:
                stored.update(provider.contents.names())
            made = self._new_userfile(user, provider, name, types[name], group_id)
            made.size, made.files = stored.get(name, (None, False))[0], 1
            return ""

        activity = self._begin_activity(items, register) if items else None
        new: list[Userfile] = []
        if self.synchronous and activity is not None:
            activity.run()
            new = [each for name in items for each in self.named(provider).get(name, [])]
            activity = None
        ignored = "Ignoring these file names because no types were provided for them: "
        raise Answer(
            200,
            {
                "notice": f"Registering {len(items)} userfile(s) in background.\n",
                "error": ignored + untyped if untyped else "",
                "newly_registered_userfiles": [each.record() for each in new],
                "previously_registered_userfiles": [
                    known[name][0].record() for name in names if name in known
                ],
                "num_unregistered": 0,
                "num_erased": 0,
                "background_activity_id": None if activity is None else activity.number,
                "background_activity_items_size": len(items),
            },
        )

    # Tools and tasks

    def _tools(self, request: PortalRequest, first: str, rest: list[str]) -> None:
        if first == "tools":
            self._page(
                request,
                [
                    {
                        "id": tool.id,
                        "name": tool.name,
                        "category": "scientific tool",
                        "description": "",
                        "url": "",
                    }
                    for tool in self.tools
                ],
            )
        if not rest:
            self._page(
                request,
                [
                    {
                        "id": tool.config_id,
                        "version_name": str(tool.descriptor.get("tool-version", "1.0")),
                        "description": "",
                        "tool_id": tool.id,
                        "bourreau_id": BOURREAU,
                        "group_id": 1,
                        "ncpus": 1,
                    }
                    for tool in self.tools
                ],
            )
        found = next((tool for tool in self.tools if tool.config_id == request.numbers[0]), None)
        raise Answer(404) if found is None else Answer(200, found.descriptor)

    def _tasks(self, request: PortalRequest, rest: list[str]) -> None:
        if rest == ["operation"]:
            self._operate(
                request.body["operation"], [int(each) for each in request.body.get("tasklist") or []]
            )
        if not rest and request.method == "POST":
            self._create_task(request, request.body["cbrain_task"])
        asked = [self.tasks.get(request.numbers[0])] if rest else list(self.tasks.values())
        for task in asked:
            if task is None:
                raise Answer(404)
            if self.automatic and task.status not in ENDED:
                self._step(task)
        if rest:
            raise Answer(200, asked[0].record() if asked[0] else None)
        recent = sorted(self.tasks.values(), key=lambda task: -task.changed)
        page, size = int(request.query.get("page", 1)), int(request.query.get("per_page", 25))
        size = min(max(size, 1), self.page_limit)
        shown = recent[(page - 1) * size : page * size]
        raise Answer(200, [task.record() for task in sorted(shown, key=lambda task: task.id)])

    def _create_task(self, request: PortalRequest, given: dict[str, Any]) -> None:
        assert request.user is not None
        tool = next((each for each in self.tools if each.config_id == given.get("tool_config_id")), None)
        problems: dict[str, list[str]] = {}
        if tool is None:
            problems["tool_config_id"] = ["is not accessible"]
        if given.get("results_data_provider_id") not in self.providers:
            problems["results_data_provider_id"] = ["must be provided"]
        params = given.get("params") or {}
        lacking = [
            number
            for number in params.get("interface_userfile_ids") or []
            if int(number) not in self.userfiles
        ]
        if lacking:
            problems["base"] = ["some input files are not accessible"]
        if problems or tool is None:
            raise Answer(422, problems)
        made = Task(
            next(self._ids),
            request.user.id,
            int(given.get("group_id") or request.user.group_id),
            tool,
            params,
            int(given["results_data_provider_id"]),
            given.get("description") or "",
            changed=next(self._clock),
        )
        self.tasks[made.id] = made
        raise Answer(200, [made.record()])

    def _operate(self, operation: str, ids: list[int]) -> None:
        known = [self.tasks[number] for number in ids if number in self.tasks]
        if not known:
            raise Answer(200, {"message": "No tasks selected"})
        done = [task for task in known if operation == "delete" or task.status not in ENDED]
        for task in done:
            if operation == "delete":
                del self.tasks[task.id]
            else:
                task.status, task.changed = "Terminated", next(self._clock)
        skipped = [task.id for task in known if task not in done]
        raise Answer(
            200,
            {
                "skipped_list": {"Tasks have incompatible states": skipped} if skipped else {},
                "success_list": [task.id for task in done],
                "failed_list": {},
                "bac_ids": [next(self._ids)],
            },
        )

    def _step(self, task: Task) -> None:
        task.changed = next(self._clock)
        task.status = STEPS[STEPS.index(task.status) + 1]
        if task.status == "Data Ready":
            try:
                self._run(task)
            except TaskFailedError as failed:
                task.status = failed.status

    def _run(self, task: Task) -> None:
        """Execute the runner, and register its outputs."""
        inputs = {}
        for number in map(int, task.params.get("interface_userfile_ids") or []):
            userfile = self.userfiles[number]
            self._copy(userfile)
            contents = userfile.provider.contents
            is_folder = userfile.type in COLLECTIONS
            inputs[number] = (
                userfile.name,
                contents.tree(userfile.name) if is_folder else contents.read(userfile.name),
            )
        made = self.runner(RunningTask(task.id, task.tool.descriptor, task.params, inputs))
        provider = self.providers[task.provider_id]
        for output, files in made.items():
            ids = [self.add_userfile(provider, name, content).id for name, content in files]
            task.params[f"_cbrain_output_{output}"] = ids
