"""Handle files at a system behind FirecREST: large ones through its object store and its jobs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from hibali.errors import IncompleteError
from hibali.text import printable
from transfers.stores.filesystem.files import Upload
from transfers.stores.filesystem.traits import Exclusive, Put, Traits
from transfers.stores.firecrest.client import FirecrestClient
from transfers.stores.firecrest.large import (
    PartsUpload,
    StagedFiles,
    UploadTarget,
    forget_upload,
    wait_for_job,
)
from transfers.stores.operations.files import OperationFiles, home_unknown

_TRAITS = Traits(
    kind="firecrest",
    put=Put.STREAMED,
    exclusive=Exclusive.FOLDER,
    threads=8,
    refuses=b"'\\\n\r",
    keeps_parts=True,
    posix=True,
    swaps=False,  # tar removes the old file before it makes the link
)


class FirecrestFiles(OperationFiles):
    """The files of one account at one system."""

    traits = _TRAITS

    def __init__(self, client: FirecrestClient) -> None:
        super().__init__(client, f"{client.settings.url}/{client.settings.system}")
        self._client = client
        self._places: dict[str, str] = {}
        self._account: tuple[str, int] | None = None
        self._staged = StagedFiles(client)

    def _filesystems(self) -> dict[str, str]:
        if not self._places:
            self._places = self._client.filesystems()
        return self._places

    def places(self) -> dict[str, str]:
        """Return the path of each filesystem by its type."""
        return {kind: path for kind, path in self._filesystems().items() if kind}

    def home(self) -> bytes:
        """See MachineFiles: that of the settings, or the account's folder in the filesystem of users, else of work folders."""
        if self._client.settings.home is not None:
            return self._client.settings.home.encode("utf-8", "surrogateescape")
        places = self._filesystems()
        above = places.get("users") or places.get("")
        if above is None:
            raise home_unknown(self.subject, "firecrest")
        return f"{above.rstrip('/')}/{self.user()}".encode("utf-8", "surrogateescape")

    def user(self) -> str:
        """See MachineFiles."""
        return self._who()[0]

    def owner(self) -> int:
        """See OperationFiles."""
        return self._who()[1]

    def _who(self) -> tuple[str, int]:
        if self._account is None:
            self._account = self._client.user()
        return self._account

    def variable(self, name: str) -> bytes | None:
        """Return the account's folder in the filesystem of this type, as $SCRATCH."""
        above = self.places().get(name.lower())
        return (
            None if above is None else f"{above.rstrip('/')}/{self.user()}".encode("utf-8", "surrogateescape")
        )

    def _read_large(self, path: bytes, tag: str, size: int, offset: int, length: int) -> bytes:
        """See OperationFiles: the file is first transferred to the object store, once."""
        return self._staged.read(path, tag, size, offset, length)

    def _slow_digest(self, path: bytes) -> str:
        """See OperationFiles: by a job."""
        result = self.own_folder() + b"/" + self.temporary_name()
        text = shlex.quote(path.decode("utf-8", "surrogateescape"))
        folder, out = (
            each.decode("utf-8", "surrogateescape") for each in (result.rpartition(b"/")[0], result)
        )
        job = self._client.submit(
            {
                "name": "hibali-sha256",
                "workingDirectory": folder,
                "standardOutput": out,
                "standardError": "/dev/null",
                "script": f"#!/bin/sh\nexec sha256sum <{text}\n",
            }
        )
        try:
            wait_for_job(self._client, job, "computes the sha256")
            digest = self._client.download(result)[:64].decode("ascii", "replace")
        finally:
            self._client.remove(result)
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise IncompleteError(
                "no-digest", "the site computed no sha256", subject=f"{self.subject}:{printable(path)}"
            )
        return digest

    def _move_folder(self, path: bytes, to: bytes) -> None:
        """See OperationFiles: by a job of the service."""
        wait_for_job(self._client, self._client.begin_change("mv", path, to), "moves the folder")

    def _copy_there(self, source: bytes, target: bytes) -> None:
        """See OperationFiles: by a job of the service."""
        wait_for_job(self._client, self._client.begin_change("cp", source, target), "copies the files")

    def drop_parts(self, path: bytes, part_folders: Sequence[bytes]) -> None:
        """See Files."""
        del part_folders
        forget_upload(self._client, path)

    def _large_upload(self, path: bytes, size: int, part_folders: Sequence[bytes]) -> Upload:
        """See OperationFiles."""
        del part_folders  # the parts are in the object store, and their journal in the state folder
        target = UploadTarget(path, path.rpartition(b"/")[0] + b"/" + self.temporary_name(), size)

        def finish(partial: bytes, digest: str) -> None:
            self.finish_upload(partial, path, size, digest)

        return PartsUpload(self._client, target, finish)
