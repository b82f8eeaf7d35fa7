"""Handle files at a system behind FirecREST: large ones through its object store and its jobs."""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Callable, Sequence

from hibali.amounts import format_size
from hibali.errors import IncompleteError, RefusedError
from hibali.text import printable
from hibali_plugins.facilities.firecrest.client import FirecrestClient, is_plain
from hibali_plugins.facilities.firecrest.large import (
    PartsUpload,
    StagedFiles,
    UploadTarget,
    forget_upload,
    wait_for_job,
)
from hibali_plugins.facilities.firecrest.streaming import StreamedFiles, StreamUpload
from hibali_plugins.facilities.machine import MACHINE_AHEAD
from hibali_plugins.facilities.operations.base import quoted_path
from hibali_plugins.facilities.operations.files import OperationFiles, home_unknown
from transfers.stores.server.files import Exclusive, Put, Traits, Upload
from transfers.stores.server.own_files import OWN

_TRAITS = Traits(
    kind="firecrest",
    put=Put.STREAMED,
    exclusive=Exclusive.FOLDER,
    threads=8,
    refuses=b"'\\\n\r",
    keeps_parts=True,
    posix=True,
    ahead_bytes=MACHINE_AHEAD,
    swaps=False,  # tar removes the old file before it makes the link
)


class FirecrestFiles(OperationFiles):
    """The files of one account at one system."""

    traits = _TRAITS

    def __init__(self, client: FirecrestClient) -> None:
        super().__init__(client, f"{client.settings.url}/{client.settings.system}")
        self.client = client
        self._places: dict[str, str] = {}
        self._account: tuple[str, int] | None = None
        self._staged = StagedFiles(client, self._download_link)
        self._streamed = StreamedFiles(client, self._download_link)

    def _filesystems(self) -> dict[str, str]:
        if not self._places:
            self._places = self.client.filesystems()
        return self._places

    def places(self) -> dict[str, str]:
        """Return the path of each filesystem by its type."""
        return {kind: path for kind, path in self._filesystems().items() if kind}

    def home(self) -> bytes:
        """See MachineFiles: that of the settings, or the account's folder in the filesystem of users, else of work folders."""
        if self.client.settings.home is not None:
            return self.client.settings.home.encode("utf-8", "surrogateescape")
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
            self._account = self.client.user()
        return self._account

    def variable(self, name: str) -> bytes | None:
        """Return the account's folder in the filesystem of this type, as $SCRATCH."""
        above = self.places().get(name.lower())
        return (
            None if above is None else f"{above.rstrip('/')}/{self.user()}".encode("utf-8", "surrogateescape")
        )

    def _read_large(self, path: bytes, tag: str, size: int, offset: int, length: int) -> bytes:
        """See OperationFiles: the file is first transferred to the object store, once, or comes from the streamer."""
        source = self._streamed if self._is_streamed() else self._staged
        return source.read(path, tag, size, offset, length)

    def _is_streamed(self) -> bool:
        """Return whether large files go over the streamer. Raise `RefusedError` unless the settings allow how the service moves them."""
        method = self.client.transfer_method()
        if method == "s3":
            return False
        if method == "streamer" and self.client.settings.streamer:
            return True
        setting = f"hibali config set sites.{self.subject}.firecrest"
        allow = (
            f"If the data may be read on the way: {setting}.streamer true. Else"
            if method == "streamer"
            else "Move"
        )
        raise RefusedError(
            "transfer-method",
            f"the service moves large files only by its {printable(method)[:50]}"
            + (
                ", whose connections are not encrypted"
                if method == "streamer"
                else ", which hibali does not have"
            ),
            subject=self.subject,
            hint=f"{allow} through another site with the same files: {setting}.data SITE",
        )

    def close(self) -> None:
        """See Files."""
        super().close()  # it ends what `_streamed` waits for
        self._streamed.close()

    def _slow_digest(self, path: bytes) -> str:
        """See OperationFiles: by a job."""
        result = self.own_folder() + b"/" + self.temporary_name()
        try:
            self._run_job(f"sha256sum <{quoted_path(path)}", "computes the sha256", result)
            digest = self.client.download(result)[:64].decode("ascii", "replace")
        finally:
            self.client.remove(result)
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise IncompleteError(
                "no-digest", "the site computed no sha256", subject=f"{self.subject}:{printable(path)}"
            )
        return digest

    def _run_job(self, command: str, what: str, out: bytes = b"/dev/null") -> None:
        """Run a line of sh as a job of hibali's own, and wait for its end."""
        description = {
            "name": "hibali-files",
            "workingDirectory": self.own_folder().decode("utf-8", "surrogateescape"),
            "standardOutput": out.decode("utf-8", "surrogateescape"),
            "standardError": "/dev/null",
            "script": f"#!/bin/sh\n{command}\n",
        }
        self._wait(lambda: self.client.submit(description), what)

    def _wait(self, begin: Callable[[], str], what: str) -> None:
        """Begin a job, and wait for its end."""
        wait_for_job(self.client, self.client.file_jobs.begin(begin), what)

    def _move_folder(self, path: bytes, to: bytes) -> None:
        """See OperationFiles."""
        self._change("mv", "mv -T", path, to, "moves the folder")

    def _copy_there(self, source: bytes, target: bytes) -> None:
        """See OperationFiles."""
        self._change("cp", "cp -R -d -T --preserve=all", source, target, "copies the files")

    def _change(self, action: str, command: str, source: bytes, target: bytes, what: str) -> None:
        """Move or copy by a job of the service; by one of hibali's own where the service would change the names (HTML escapes)."""
        both = (source + target).decode("utf-8", "surrogateescape")
        if html.escape(both) == both:
            self._wait(lambda: self.client.begin_change(action, source, target), what)
        else:
            self._run_job(f"{command} -- {quoted_path(source)} {quoted_path(target)}", what)

    def _plain_path(self, path: bytes, link: bytes) -> bytes:
        """Return a path to a file or folder that scripts of the service read as it is: itself, or this symlink, which is made."""
        if is_plain(path):
            return path
        self._check_plain(link)
        self.own_folder()
        self.client.symlink(path, link)
        return link

    def _download_link(self, path: bytes) -> tuple[bytes, bytes]:
        """See StagedFiles. The service sends the beginning of a file if its path is a symlink, as it takes the size of that.

        A folder may be one; a file with another name is linked or copied by a job.
        """
        if is_plain(path):
            return path, b""
        temporary = self._link(self.temporary_name())
        folder, _, name = path.rpartition(b"/")
        if is_plain(name):
            return self._plain_path(folder, temporary) + b"/" + name, temporary
        self._check_plain(temporary)
        source, target = quoted_path(path), quoted_path(temporary)
        self._run_job(f"ln {source} {target} || cp {source} {target}", "copies the file")
        return temporary, temporary

    def _check_plain(self, link: bytes) -> None:
        if not is_plain(link):
            raise RefusedError(
                "unsafe-name",
                f"FirecREST cannot move large files by way of this home folder: {printable(self.home())}",
                subject=self.subject,
                hint=f"To set it: hibali config set sites.{self.subject}.firecrest.home /PATH",
            )

    def _upload_link(self, path: bytes) -> bytes:
        """Return the symlink to the folder of a file that is uploaded; an interrupted upload finds it again."""
        return self._link(hashlib.sha256(path).hexdigest()[:32].encode("ascii"))

    def _link(self, name: bytes) -> bytes:
        return self.home() + b"/" + OWN + b"/jobs/" + name

    def drop_parts(self, path: bytes, part_folders: Sequence[bytes]) -> None:
        """See Files."""
        del part_folders
        forget_upload(self.client, path)
        self._drop_upload_link(path)

    def _drop_upload_link(self, path: bytes) -> None:
        if not is_plain(path.rpartition(b"/")[0]):
            self.client.remove(self._upload_link(path))

    def _large_upload(self, path: bytes, size: int, part_folders: Sequence[bytes]) -> Upload:
        """See OperationFiles."""
        del part_folders  # the parts are in the object store, and their journal in the state folder
        is_streamed, most = self._is_streamed(), self.client.most_streamed()
        if is_streamed and most is not None and size > most:
            raise IncompleteError(
                "too-large",
                f"the streamer of the service receives files of at most {format_size(most)}",
                subject=f"{self.subject}:{printable(path)}",
            )
        folder, name = path.rpartition(b"/")[0], self.temporary_name()
        through = self._plain_path(folder, self._upload_link(path))
        target = UploadTarget(path, folder + b"/" + name, size, through + b"/" + name)

        def finish(partial: bytes, digest: str) -> None:
            self.finish_upload(partial, path, size, digest)
            self._drop_upload_link(path)

        return (StreamUpload if is_streamed else PartsUpload)(self.client, target, finish)
