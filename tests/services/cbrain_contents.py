"""Store the files of the double's data providers: in a folder, or in a bucket of a real object store."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path
from typing import Any, Protocol

Tree = dict[str, bytes]  # contents by relative path


class Contents(Protocol):
    """The files of one data provider, without their registration."""

    def names(self) -> dict[str, tuple[int, bool]]:
        """Return the size of each name at the top, and whether it is a folder."""

    def read(self, name: str) -> bytes:
        """Return a file's content. Raises `KeyError`."""

    def tree(self, name: str) -> Tree:
        """Return the contents of all files in a folder."""

    def archive(self, name: str) -> bytes:
        """Return a folder as the portal sends it: a tar archive with its name on top, compressed with gzip."""

    def write(self, name: str, content: bytes | Tree) -> None:
        """Store a file or a folder."""

    def delete(self, name: str) -> None:
        """Remove a file or a folder; absent ones are no error."""


class FolderContents:
    """Files in a folder of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def names(self) -> dict[str, tuple[int, bool]]:
        return {
            path.name: (
                sum(map(len, self.tree(path.name).values())) if path.is_dir() else path.stat().st_size,
                path.is_dir(),
            )
            for path in self.root.iterdir()
        }

    def read(self, name: str) -> bytes:
        try:
            return (self.root / name).read_bytes()
        except (FileNotFoundError, IsADirectoryError):
            raise KeyError(name) from None

    def tree(self, name: str) -> Tree:
        top = self.root / name
        return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}

    def archive(self, name: str) -> bytes:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz", format=tarfile.GNU_FORMAT) as archive:
            archive.add(self.root / name, name)
        return packed.getvalue()

    def write(self, name: str, content: bytes | Tree) -> None:
        if isinstance(content, bytes):
            (self.root / name).write_bytes(content)
            return
        (self.root / name).mkdir(exist_ok=True)
        for path, each in content.items():
            full = self.root / name / path
            full.parent.mkdir(parents=True, exist_ok=True)
            full.write_bytes(each)

    def delete(self, name: str) -> None:
        path = self.root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


class BucketContents:
    """Objects below a prefix of a bucket; `client` is one of botocore."""

    def __init__(self, client: Any, bucket: str, prefix: str = "") -> None:
        self._client, self._bucket = client, bucket
        self._prefix = f"{prefix}/" if prefix else ""

    def _objects(self, name: str = "") -> dict[str, int]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._prefix + name
        )
        return {
            found["Key"].removeprefix(self._prefix): found["Size"]
            for page in pages
            for found in page.get("Contents", ())
        }

    def names(self) -> dict[str, tuple[int, bool]]:
        found: dict[str, tuple[int, bool]] = {}
        for key, size in self._objects().items():
            top, slash, _ = key.partition("/")
            found[top] = (found.get(top, (0, False))[0] + size, bool(slash))
        return found

    def read(self, name: str) -> bytes:
        try:
            with self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)["Body"] as body:
                content: bytes = body.read()
        except self._client.exceptions.NoSuchKey:
            raise KeyError(name) from None
        return content

    def tree(self, name: str) -> Tree:
        return {
            key.removeprefix(f"{name}/"): self.read(key)
            for key in self._objects(f"{name}/")
            if key != f"{name}/"
        }

    def archive(self, name: str) -> bytes:
        return archive_of(name, self.tree(name))

    def write(self, name: str, content: bytes | Tree) -> None:
        if isinstance(content, bytes):
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=content)
            return
        for path, each in content.items():
            self.write(f"{name}/{path}", each)

    def delete(self, name: str) -> None:
        for key in self._objects(name):
            if key == name or key.startswith(f"{name}/"):
                self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)


def archive_of(name: str, tree: Tree) -> bytes:
    """Return an archive of these files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        _add(archive, tarfile.DIRTYPE, name, b"")
        folders = {
            "/".join(path.split("/")[:count]) for path in tree for count in range(1, path.count("/") + 1)
        }
        for folder in sorted(folders):
            _add(archive, tarfile.DIRTYPE, f"{name}/{folder}", b"")
        for path, content in sorted(tree.items()):
            _add(archive, tarfile.REGTYPE, f"{name}/{path}", content)
    return packed.getvalue()


def _add(archive: tarfile.TarFile, kind: bytes, name: str, content: bytes) -> None:
    found = tarfile.TarInfo(name)
    found.type, found.size, found.mode = kind, len(content), 0o755 if kind == tarfile.DIRTYPE else 0o644
    archive.addfile(found, io.BytesIO(content))
