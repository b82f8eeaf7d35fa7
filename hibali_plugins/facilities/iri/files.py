"""Handle files at a facility that offers the IRI Facility API."""

from __future__ import annotations

from collections.abc import Sequence

from hibali.errors import IncompleteError, NotFoundError
from hibali.http.client import Bytes
from hibali.retry import with_retries
from hibali_plugins.facilities.iri.client import IriClient
from hibali_plugins.facilities.iri.jobs import run_job
from hibali_plugins.facilities.iri.large import JoinedUpload, SplitFiles
from hibali_plugins.facilities.machine import MACHINE_AHEAD
from hibali_plugins.facilities.operations.archive import common_folder, numbered_archive
from hibali_plugins.facilities.operations.base import quoted_path
from hibali_plugins.facilities.operations.files import OperationFiles, home_unknown
from transfers.model.entry import Kind
from transfers.stores.server.files import Exclusive, Put, Traits, Upload
from transfers.stores.server.records import Found

_TRAITS = Traits(
    kind="iri",
    put=Put.STREAMED,
    exclusive=Exclusive.FOLDER,
    threads=8,
    refuses=b"'\\\n\r",
    keeps_parts=True,
    posix=True,
    ahead_bytes=MACHINE_AHEAD,
)


class IriFiles(OperationFiles):
    """The files of one account at one facility."""

    traits = _TRAITS

    def __init__(self, client: IriClient) -> None:
        super().__init__(client, f"{client.settings.url}/{client.settings.filesystem or ''}")
        self.client = client
        self._locations: dict[str, str] | None = None
        self._user: str | None = None
        self._owner: int | None = None
        self._split = SplitFiles(client, lambda: self.own_folder() + b"/" + self.temporary_name())

    def resources(self) -> dict[str, str]:
        """Return the ids of the resources that are used, by their purpose."""
        return {purpose: self.client.resource(purpose) for purpose in ("compute", "filesystem")}

    def places(self) -> dict[str, str]:
        """Return the account's folder of each kind, where the API tells them."""
        if self._locations is None:
            self._locations = self.client.locations()
        return self._locations

    def home(self) -> bytes:
        """See MachineFiles."""
        home = self.client.settings.home or self.places().get("home")
        if home is None:
            raise home_unknown(self.subject, "iri")
        return home.rstrip("/").encode("utf-8", "surrogateescape")

    def variable(self, name: str) -> bytes | None:
        """Return the account's folder of this kind, as $SCRATCH."""
        found = self.places().get(name.lower())
        return None if found is None else found.rstrip("/").encode("utf-8", "surrogateescape")

    def user(self) -> str:
        """See MachineFiles."""
        if self._user is None:
            self._user = self.client.user()
        return self._user

    def owner(self) -> int:
        """See OperationFiles: that of the home folder."""
        if self._owner is None:
            found = self.client.stat(self.home(), follow=True)
            if found is None:
                raise NotFoundError("no-such-place", "the home folder does not exist", subject=self.subject)
            self._owner = found.user
        return self._owner

    def _put_together(self, files: Sequence[tuple[bytes, Bytes]]) -> None:
        """See OperationFiles: facilities extract an archive only into a new folder, from which the files are moved.

        An attempt that fails is repeated with other names, because it may still be under way.
        """

        def attempt() -> None:
            above = common_folder(files)
            archive, folder = (above + b"/" + self.temporary_name() for _ in range(2))
            try:
                self.client.upload(archive, numbered_archive([content for _, content in files]))
                self.client.extract(archive, folder)
                for number, (path, _) in enumerate(files):
                    self.move(folder + b"/%d" % number, path)
            finally:
                self.client.remove(archive)
                self.client.remove(folder)

        with_retries(attempt, subject=self.subject)

    def move(self, path: bytes, to: bytes) -> None:
        """See Files: mv(1), which would move into a folder of the new name."""
        found = self.stat_followed(to)
        if found is not None and found.kind is Kind.FOLDER:
            raise IncompleteError("not-a-file", "it is a folder", subject=self.subject)
        self.client.rename(path, to)

    def _move_folder(self, path: bytes, to: bytes) -> None:
        """See OperationFiles."""
        self.client.rename(path, to)

    def _copy_there(self, source: bytes, target: bytes) -> None:
        """See OperationFiles: by a job, because the API's cp copies no folders."""
        folder = self._job_folder()
        words = "exec cp -R -L --" if self._is_folder(source) else "exec cp -L --"
        script = f"#!/bin/sh\n{words} {quoted_path(source)} {quoted_path(target)}\n"
        try:
            run_job(self.client, folder, "copy.sh", script, "copies the files")
        finally:
            self.client.remove(folder)

    def _is_folder(self, path: bytes) -> bool:
        found: Found | None = self.stat_followed(path)
        return found is not None and found.kind is Kind.FOLDER

    def _job_folder(self) -> bytes:
        folder = self.own_folder() + b"/" + self.temporary_name()
        self.client.mkdir(folder)
        return folder

    def _read_large(self, path: bytes, tag: str, size: int, offset: int, length: int) -> bytes:
        """See OperationFiles."""
        return self._split.read(path, tag, size, offset, length)

    def _large_upload(self, path: bytes, size: int, part_folders: Sequence[bytes]) -> Upload:
        """See OperationFiles."""
        folders = part_folders or [path.rpartition(b"/")[0] + b"/" + self.temporary_name()]

        def finish(joined: bytes, digest: str) -> None:
            self.finish_upload(joined, path, size, digest)

        return JoinedUpload(self.client, folders, finish)

    def close(self) -> None:
        """See Files."""
        self.client.file_jobs.close()  # `_split` may wait for one
        self._split.close()
        super().close()
