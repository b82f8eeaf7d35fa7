"""The folder of the catalogue: `NAME/VERSION/descriptor.json`; a version appears whole by one rename and goes by one."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from hibali.errors import IncompleteError, RefusedError
from hibali.folders import private_folder
from hibali.ledger import sync_folder, write_atomic
from hibali.system_errors import reason_of
from hibali.text import printable
from registry.deprecation import FILE as DEPRECATED
from registry.pipeline import Pipeline

DESCRIPTOR = "descriptor.json"


class Shelf:
    """Versions as folders; it knows nothing of pins. Every method that changes it raises `IncompleteError` where it cannot."""

    def __init__(self, state: Path) -> None:
        """In this state folder; raises `RefusedError` where others could write it."""
        self._state = state
        self.folder = private_folder(state / "catalogue")
        self._root = str(self.folder)  # thousands of paths are made of it, which Path is slow at

    def names(self) -> list[str]:
        """All names, in no order."""
        return list(_folders(self._root))

    def versions(self, name: str) -> set[str]:
        """The versions that lie there."""
        folder = f"{self._root}/{name}"
        return {each for each in _folders(folder) if os.path.exists(f"{folder}/{each}/{DESCRIPTOR}")}  # noqa: PTH110

    def version_folder(self, name: str, version: str) -> Path:
        """Where a version lies, or would."""
        return self.folder / name / version

    def descriptor(self, name: str, version: str) -> str:
        """Where its descriptor lies, or would."""
        return f"{self._root}/{name}/{version}/{DESCRIPTOR}"

    def deprecation(self, name: str, version: str) -> str:
        """Where it is said that it is deprecated, if it is."""
        return f"{self._root}/{name}/{version}/{DEPRECATED}"

    def place(self, pipeline: Pipeline) -> bool:
        """Let the version's folder appear whole; False when another one appeared first."""
        target = self.version_folder(pipeline.name, pipeline.version)
        partial = private_folder(self.partial_folder() / secrets.token_hex(16))
        try:
            with writing(target):
                write_atomic(partial / DESCRIPTOR, pipeline.raw)
                private_folder(target.parent)
                try:
                    partial.rename(target)
                except (FileExistsError, FileNotFoundError):
                    return False
                except OSError:
                    if (target / DESCRIPTOR).exists():
                        return False
                    raise
                sync_folder(target.parent)
                sync_folder(self.folder)
                return True
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def beside(self, name: str, version: str) -> dict[str, Path]:
        """What lies beside the descriptor, by its name in the version's folder, one level deep."""
        folder = self.version_folder(name, version)
        files = [*folder.glob("*"), *folder.glob("*/*")]
        found = {str(each.relative_to(folder)): each for each in files if each.is_file()}
        found.pop(DESCRIPTOR, None)
        return found

    def place_beside(self, name: str, version: str, files: Mapping[str, bytes]) -> None:
        """Lay files beside the descriptor; those that are there stay as they are. Raises `RefusedError` for a name that climbs."""
        folder = self.version_folder(name, version)
        with writing(folder):
            for file, content in files.items():
                if not {"", ".", ".."}.isdisjoint(file.split("/")):
                    raise RefusedError(
                        "unsafe-name", "this name leads out of a version's folder", about=printable(file)
                    )
                target = folder / file
                private_folder(target.parent)
                if not target.exists():
                    write_atomic(target, content)

    def remove(self, name: str, version: str) -> None:
        """Take a version away, and the name with its last one."""
        folder = self.version_folder(name, version)
        with writing(folder):
            if folder.exists():
                aside = self.partial_folder() / secrets.token_hex(16)
                folder.rename(aside)
                shutil.rmtree(aside)
            with contextlib.suppress(OSError):
                folder.parent.rmdir()

    def partial_folder(self) -> Path:
        """Where what is not finished yet lies, on the same filesystem."""
        return private_folder(self._state / "catalogue-partial")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Translate what goes wrong while something is written there."""
    try:
        yield
    except OSError as problem:
        raise IncompleteError(
            "catalogue-unwritable",
            f"the catalogue cannot be changed: {reason_of(problem)}",
            about=str(path),
            hint="Make room there and type the same line again.",
        ) from None


def _folders(folder: str) -> Iterator[str]:
    """What may be a name or a version in it: none of them begins with a dot."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                yield entry.name
