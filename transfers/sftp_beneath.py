"""Names below a root over SFTP: every folder above a name is looked at before the name is used (S1).

SFTP takes whole paths and follows symlinks in them, so between the look and the use somebody who may write
there can still swap a folder; docs/transfers.md says what is therefore not promised.
"""

from __future__ import annotations

from collections.abc import Iterable

from hibali.system_errors import words_of
from transfers import sftp_wire as wire
from transfers.entry import Kind
from transfers.sftp_channel import StatusError
from transfers.sftp_client import Client, kind_of, problem_of
from transfers.store import Problem, unsafe_component

_LONGEST_NAME = 255
_LONGEST_PATH = 4096
_FOLDER_MODE = 0o777  # the server's umask decides


def refusal(path: bytes) -> Problem | None:
    """Why a relative path is never used, or None."""
    reason = unsafe_component(path)
    if reason:
        return Problem("unsafe-name", f"the name climbs or is empty: {reason}")
    if len(path) > _LONGEST_PATH or any(len(part) > _LONGEST_NAME for part in path.split(b"/")):
        return Problem("name-too-long", "File name too long")
    return None


class Beneath:
    """One root; any thread may ask."""

    def __init__(self, client: Client, root: bytes) -> None:
        self._client = client
        self._prefix = root if root.endswith(b"/") else root + b"/"

    def full(self, path: bytes) -> bytes:
        """The absolute path of a relative one; b"" is the root."""
        return self._prefix + path

    def parents(self, paths: Iterable[bytes], *, make: bool = False) -> dict[bytes, Problem]:
        """Look at all folders above these paths at once, and with `make` make what is missing; who has a problem.

        A symlink or a file where a folder should be is a problem of everything below it.
        """
        given = list(paths)
        wrong = {path: problem for path in given if (problem := refusal(path)) is not None}
        folders = sorted({above for path in given if path not in wrong for above in _above(path)})
        found = self._look(folders, make=make)
        for path in given:
            if path not in wrong:
                bad = next((found[above] for above in _above(path) if above in found), None)
                if bad is not None:
                    wrong[path] = bad
        return wrong

    def _look(self, folders: list[bytes], *, make: bool) -> dict[bytes, Problem]:
        """What is wrong with each folder; sorted, so that those above come first."""
        wrong, missing = self._check(folders)
        if not (make and missing):
            return {**wrong, **dict.fromkeys(missing, _VANISHED)}
        asked = [self._client.ask_make_folder(self.full(folder), _FOLDER_MODE) for folder in missing]
        refused: dict[bytes, StatusError] = {}
        for folder, pending in zip(missing, asked, strict=True):
            try:
                pending.wait()
            except StatusError as problem:  # perhaps only because somebody else made it
                refused[folder] = problem
        again, absent = self._check(missing)
        for folder in absent:
            cause = refused.get(folder)
            again[folder] = self._client.problem(cause, self.full(b"")) if cause else _VANISHED
        return {**wrong, **again}

    def _check(self, folders: list[bytes]) -> tuple[dict[bytes, Problem], list[bytes]]:
        """Those that are no folders, and those that are absent."""
        asked = [self._client.ask_stat(self.full(folder)) for folder in folders]
        wrong: dict[bytes, Problem] = {}
        missing = []
        for folder, pending in zip(folders, asked, strict=True):
            try:
                kind = kind_of(self._client.attributes_of(pending))
            except StatusError as problem:
                if problem.code == wire.NO_SUCH_FILE:
                    missing.append(folder)
                else:
                    wrong[folder] = problem_of(problem)
                continue
            if kind is Kind.LINK:
                wrong[folder] = Problem("symlink-in-the-way", words_of("symlink-in-the-way"))
            elif kind is not Kind.FOLDER:
                wrong[folder] = Problem("not-a-folder", words_of("not-a-folder"))
        return wrong, missing


_VANISHED = Problem("vanished", words_of("vanished"))


def _above(path: bytes) -> list[bytes]:
    """The folders above a path, the highest first, without the root."""
    parts = path.split(b"/")[:-1]
    return [b"/".join(parts[: count + 1]) for count in range(len(parts))]
