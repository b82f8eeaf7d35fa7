"""Define the records of the double of a CBRAIN portal, its faults, and what runs its tasks."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.services.cbrain_contents import Contents, FolderContents, Tree

BOURREAU = 13
STEPS = ("New", "Queued", "On CPU", "Data Ready", "Post Processing", "Completed")
ENDED = (
    "Completed",
    "Terminated",
    "Failed To Setup",
    "Failed On Cluster",
    "Failed To PostProcess",
    "Failed Setup Prerequisites",
    "Failed PostProcess Prerequisites",
)

LOST = "lost"  # the request is executed, and the connection ends without an answer
DROPPED = "dropped"  # the connection ends before the request is executed
STATUS = "status"  # the answer is `status`, with `retry_after` if given
EXPIRED = "expired"  # all tokens expire first
SLOW = "slow"  # the answer comes after `seconds`
GARBAGE = "garbage"  # the request is executed, and the answer is not JSON
WRONG_SIZE = "wrong-size"  # of an upload: the portal stores one byte less
CORRUPT = "corrupt"  # of an upload: the portal stores other bytes


@dataclass
class Fault:
    """A fault of the next `times` matching requests, after `after` others; `path` is a regular expression."""

    method: str
    path: str
    kind: str
    times: int = 1
    after: int = 0
    status: int = 503
    retry_after: int | None = None
    seconds: float = 0.0
    hits: int = 0

    def occurs(self, method: str, path: str) -> bool:
        if method != self.method or not re.fullmatch(self.path, path) or self.hits >= self.times:
            return False
        if self.after:
            self.after -= 1
            return False
        self.hits += 1
        return True


@dataclass
class User:
    id: int
    login: str
    password: str
    group_id: int


@dataclass
class Provider:
    id: int
    name: str
    type: str
    user_id: int
    group_id: int
    browsable: bool
    contents: Contents
    read_only: bool = False
    online: bool = True

    def record(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "type": self.type,
            "user_id": self.user_id,
            "group_id": self.group_id,
            "online": self.online,
            "read_only": self.read_only,
            "description": "",
            "is_browsable": self.browsable,
            "is_fast_syncing": True,
            "allow_file_owner_change": True,
            "content_storage_shared_between_users": True,
        }


@dataclass
class Userfile:
    id: int
    name: str
    type: str
    user_id: int
    group_id: int
    provider: Provider
    size: int | None = None
    files: int | None = None
    description: str | None = None
    group_writable: bool = False
    waiting: tuple[int, bytes] | None = None  # the request at which the content is copied, and the content

    def record(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "browse_path": None,
            "size": self.size,
            "user_id": self.user_id,
            "parent_id": None,
            "type": self.type,
            "group_id": self.group_id,
            "data_provider_id": self.provider.id,
            "group_writable": self.group_writable,
            "num_files": self.files,
            "hidden": False,
            "immutable": False,
            "archived": False,
            "description": self.description,
        }


@dataclass
class Activity:
    """A background activity: its items are processed at request number `due`; `process` returns the reason of a failure, or ""."""

    number: int
    items: Sequence[object]
    process: Callable[[object], str]
    due: int
    status: str = "InProgress"
    messages: list[str] = field(default_factory=list)

    def run(self) -> None:
        self.messages = [self.process(each) for each in self.items]
        failures = len([each for each in self.messages if each])
        partly = "PartiallyCompleted" if failures < len(self.messages) else "Failed"
        self.status = partly if failures else "Completed"

    def record(self) -> dict[str, Any]:
        failures = len([each for each in self.messages if each])
        return {
            "id": self.number,
            "type": "BackgroundActivity",
            "status": self.status,
            "items": list(self.items),
            "messages": [each or "1" for each in self.messages],
            "current_item": len(self.messages),
            "num_successes": len(self.messages) - failures,
            "num_failures": failures,
            "options": {},
        }


@dataclass
class Tool:
    id: int
    config_id: int
    name: str
    descriptor: dict[str, Any]


@dataclass
class Task:
    id: int
    user_id: int
    group_id: int
    tool: Tool
    params: dict[str, Any]
    provider_id: int
    description: str
    status: str = "New"
    changed: int = 0

    def record(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "BoutiquesTask::" + re.sub(r"\W", "", self.tool.name),
            "user_id": self.user_id,
            "group_id": self.group_id,
            "bourreau_id": BOURREAU,
            "tool_config_id": self.tool.config_id,
            "batch_id": self.id,
            "params": self.params,
            "status": self.status,
            "created_at": "2025-06-01T10:00:00.000Z",
            "updated_at": f"2025-06-01T10:00:00.{self.changed % 1000:03}Z",
            "run_number": None if self.status == "New" else 1,
            "results_data_provider_id": self.provider_id,
            "cluster_workdir_size": None,
            "workdir_archived": False,
            "workdir_archive_userfile_id": None,
            "description": self.description,
        }


@dataclass(frozen=True)
class RunningTask:
    """What a runner gets: the answers (`invoke`) and the inputs, by the ids of their userfiles."""

    id: int
    descriptor: Mapping[str, Any]
    params: Mapping[str, Any]
    inputs: Mapping[int, tuple[str, bytes | Tree]]

    @property
    def invoke(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.params.get("invoke") or {}
        return found


class TaskFailedError(Exception):
    """Raised by a runner: the task ends in this state of `ENDED`."""

    def __init__(self, status: str = "Failed On Cluster") -> None:
        super().__init__(status)
        self.status = status


Outputs = Mapping[
    str, Sequence[tuple[str, bytes | Tree]]
]  # new userfiles by the id of the descriptor's output
Runner = Callable[[RunningTask], Outputs]


def command_runner(words: Callable[[RunningTask, Path], Sequence[str]], outputs: Mapping[str, str]) -> Runner:
    """Return a runner that executes a command in a new folder with the inputs under their names.

    `words` makes the command; `outputs` are patterns of the files that become userfiles. Exit codes other than 0 fail.
    """

    def run(running: RunningTask) -> Outputs:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            contents = FolderContents(folder)
            for input_name, content in running.inputs.values():
                contents.write(input_name, content)
            ended = subprocess.run(words(running, folder), cwd=folder, capture_output=True, check=False)
            if ended.returncode != 0:
                raise TaskFailedError
            return {
                output: [
                    (path.name, contents.tree(path.name) if path.is_dir() else path.read_bytes())
                    for path in sorted(folder.glob(pattern))
                ]
                for output, pattern in outputs.items()
            }

    return run
