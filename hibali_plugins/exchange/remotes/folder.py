"""Exchange pipelines through a plain folder: `NAME/VERSION/...`, each version made by one rename."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from hibali.errors import HibaliError, IncompleteError, RefusedError, TryLaterError
from hibali.system_errors import reason_of
from hibali.text import printable
from hibali_plugins.exchange.remotes.base import LARGEST_FILE, Offer, Reference, RemoteSpec, Upload, gather
from hibali_plugins.exchange.remotes.published import check_existing_file
from registry.catalogue_folder import DESCRIPTOR


class FolderRemote:
    """The Remote protocol (hibali_plugins.exchange.remotes.base.Remote). It has no history: only pins show its earlier content."""

    def __init__(self, spec: RemoteSpec) -> None:
        self._folder = Path(spec.url)

    def take_snapshot(self, *, accept_rewritten: bool = False, make: bool = False) -> FolderSnapshot:
        """See Remote."""
        del accept_rewritten, make
        if not self._folder.is_dir():
            raise TryLaterError(
                "remote-unreachable",
                "the folder does not exist",
                subject=printable(os.fsencode(self._folder)),
            )
        return FolderSnapshot(self._folder)


class FolderSnapshot:
    """The Snapshot protocol. Others may write there: only regular files are read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def offers(self) -> Mapping[Reference, Offer]:
        """See Snapshot."""
        return gather(self._files(), str(self._folder))

    def read(self, wanted: Sequence[str]) -> Iterable[bytes]:
        """See Snapshot."""
        return [_read(self._folder / each.partition("|")[2]) for each in wanted]

    def publish(self, uploads: Sequence[Upload], message: str) -> bool:
        """See Snapshot. An existing version gets additional files."""
        del message
        with _translated(self._folder):
            return all(self._place(upload) for upload in uploads)

    def _files(self) -> Iterator[tuple[str, str]]:
        for folder, folders, files in os.walk(self._folder):
            folders[:] = [each for each in folders if not each.startswith(".")]
            for name in files:
                path = Path(folder) / name
                found = path.lstat()
                inside = str(path.relative_to(self._folder))
                if stat.S_ISREG(found.st_mode) and found.st_size <= LARGEST_FILE and inside.isascii():
                    yield (
                        inside,
                        f"{found.st_ino}-{found.st_size}-{found.st_mtime_ns}-{found.st_ctime_ns}|{inside}",
                    )

    def _place(self, upload: Upload) -> bool:
        target = self._folder / upload.name / upload.version
        partial = self._folder / f".{secrets.token_hex(16)}"
        try:
            for name, content in upload.files.items():
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
                _write(partial / name, content)
            if target.exists():
                last = sorted(upload.files, key=DESCRIPTOR.__eq__)  # other files are ignored without it
                return all(self._add(upload, name, partial / name, target / name) for name in last)
            target.parent.mkdir(exist_ok=True)
            try:
                partial.rename(target)
            except OSError:
                if target.exists():
                    return False
                raise
            return True
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _add(self, upload: Upload, name: str, source: Path, target: Path) -> bool:
        """Add one file; the first writer wins. False where another process wrote the descriptor."""
        target.parent.mkdir(exist_ok=True)
        try:
            target.hardlink_to(source)
        except FileExistsError:
            if name == DESCRIPTOR:
                return False
            existing = _read(target)
            if existing != upload.files[name]:
                check_existing_file(upload, name, existing, str(self._folder))
        return True


def _read(path: Path) -> bytes:
    with _translated(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise RefusedError("no-file", "this is not a regular file any more", subject=str(path))
            return stream.read(LARGEST_FILE + 1)


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except HibaliError:
        raise
    except OSError as problem:
        raise IncompleteError(
            "remote-failed",
            f"the folder cannot be used: {reason_of(problem)}",
            subject=printable(os.fsencode(path)),
        ) from None
