"""Define the steps of a task on real folders: items, folders and files."""

from __future__ import annotations

import errno
import fnmatch
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.services.globus.collections import normal_path, real_path
from tests.services.globus.file_copy import TroubleError, copy_file, digest_of, raise_fault_before_writing
from tests.services.globus.world import Collection, World

if TYPE_CHECKING:
    from tests.services.globus.tasks import Task


@dataclass
class Step:
    """One step of a task; `source` and `destination` are paths of the collections."""

    do: Callable[[Step], list[Step]]
    source: str
    destination: str
    item: dict[str, Any]
    is_folder: bool = False


class Steps:
    """The work of one task; each step returns the further steps that it found."""

    def __init__(self, world: World, task: Task) -> None:
        self.world, self.task = world, task
        self.ends: list[Collection] = [task.source] + ([task.destination] if task.destination else [])
        self.about = {"collections": [end.id for end in self.ends], "task": task.id}

    def is_at_destination(self, step: Step, filename: object) -> bool:
        """Return whether a filesystem error occurred at the destination."""
        if len(self.ends) == 1 or filename is None:
            return False
        given, root = str(filename), str(self.ends[1].root)
        target = str(real_path(self.ends[1], step.destination))
        return f"{given}/".startswith(f"{target}/") or (
            given.startswith(root) and target.startswith(f"{given}/")
        )

    def first(self) -> list[Step]:
        """Return the steps of the requested items."""
        task = self.task
        if task.kind == "DELETE":
            return [
                Step(self.delete, path, "", item)
                for item in task.body["DATA"]
                for path in self._globbed(normal_path(task.source, item["path"]))
            ]
        source, destination = self.ends
        return [
            Step(
                self.begin,
                normal_path(source, item["source_path"]),
                normal_path(destination, item["destination_path"]),
                item,
            )
            for item in task.body["DATA"]
        ]

    def _globbed(self, path: str) -> list[str]:
        if not self.task.body.get("interpret_globs"):
            return [path]
        above, _, pattern = path.rpartition("/")
        folder = real_path(self.task.source, above or "/")
        found = sorted(os.listdir(folder)) if folder.is_dir() else []  # noqa: PTH208 - only names are needed
        return [f"{above}/{name}" for name in found if fnmatch.fnmatchcase(name, pattern)]

    def begin(self, step: Step) -> list[Step]:
        """Determine whether an item is a folder or a file; raise if that contradicts the item's `recursive`."""
        found = real_path(self.task.source, step.source)
        recursive = step.item.get("recursive")
        is_folder = found.is_dir() if found.exists() or recursive is None else bool(recursive)
        if recursive is not None and found.exists() and is_folder is not recursive:
            raise TroubleError(
                "IS_A_DIRECTORY" if is_folder else "NOT_A_DIRECTORY", step.source, "recursive says otherwise"
            )
        step.is_folder = is_folder
        if not is_folder:
            step.do = self.copy
            return self.copy(step)
        return self.enter(step)

    def enter(self, step: Step) -> list[Step]:
        """Create the folder and return steps for its entries."""
        task, (source, destination) = self.task, self.ends
        folder, made = real_path(source, step.source), real_path(destination, step.destination)
        found: list[Step] = []
        names = set()
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: os.fsencode(entry.name)):
                is_folder = entry.is_dir(follow_symlinks=False)
                if not self._wanted(entry, is_folder=is_folder):
                    continue
                names.add(entry.name)
                text = _name(entry, step.source)
                do = self.enter if is_folder else self.copy
                pair = (f"{step.source.rstrip('/')}/{text}", f"{step.destination.rstrip('/')}/{text}")
                found.append(Step(do, *pair, {}, is_folder))
        made.mkdir(parents=True, exist_ok=True)
        if task.options["delete_destination_extra"]:
            for left in sorted(made.iterdir()):
                if left.name not in names:
                    _remove(left)
        task.counts["directories"] += 1
        return found

    def _wanted(self, entry: os.DirEntry[str], *, is_folder: bool) -> bool:
        if entry.is_symlink() and self.task.options["recursive_symlinks"] != "copy":
            return False
        if not is_folder and not entry.is_file():
            return False  # skip pipes and devices
        kind = "dir" if is_folder else "file"
        for rule in self.task.options["filter_rules"] or ():
            if rule.get("type") in {None, kind} and fnmatch.fnmatchcase(entry.name, rule["name"]):
                return bool(rule.get("method") == "include")
        return True

    def copy(self, step: Step) -> list[Step]:
        counts = self.task.counts
        source, destination = self.ends
        paths = real_path(source, step.source), real_path(destination, step.destination)
        about = {**self.about, "paths": [step.source, step.destination], "done": self.task.done}
        sent = copy_file(self.world, self.task, paths, step.item, about)
        counts["files"] += 1
        if sent is None:
            counts["files_skipped"] += 1
            return []
        counts["files_transferred"] += 1
        counts["bytes_transferred"] += sent
        digest = self.task.options["verify_checksum"] and digest_of(paths[0])
        self.task.succeeded.append(
            {
                "DATA_TYPE": "successful_transfer",
                "source_path": step.source,
                "destination_path": step.destination,
                "size": sent,
                "checksum": digest or None,
                "checksum_algorithm": "MD5" if digest else None,
                "dynamic_metadata": None,
            }
        )
        return []

    def delete(self, step: Step) -> list[Step]:
        body, path = self.task.body, real_path(self.task.source, step.source)
        raise_fault_before_writing(
            self.world, self.task, {**self.about, "paths": [step.source], "done": self.task.done}
        )
        if not os.path.lexists(path):
            if body.get("ignore_missing"):
                return []
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        if path == self.task.source.root:
            raise PermissionError(errno.EACCES, "The collection itself stays")
        if path.is_dir() and not path.is_symlink() and not body.get("recursive"):
            raise TroubleError("IS_A_DIRECTORY", step.source, "recursive is not set")
        _remove(path)
        self.task.counts["files"] += 1
        return []


def _name(entry: os.DirEntry[str], folder: str) -> str:
    """Decode a name; names that JSON and GridFTP cannot represent are skipped."""
    name = os.fsencode(entry.name)
    try:
        text = name.decode()
    except UnicodeDecodeError:
        text = "\n"
    if "\n" in text or "\r" in text:
        raise TroubleError("INVALID_PATH_NAME", folder, f"{name!r} cannot be named")
    return text


def _remove(path: Path) -> None:
    """Delete a file, a symlink, or a folder with its content; symlinks are not followed."""
    if path.is_dir() and not path.is_symlink():
        for below in path.iterdir():
            _remove(below)
        path.rmdir()
    else:
        path.unlink()
