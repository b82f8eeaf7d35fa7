"""Convert an image archive to one tar of its file tree at the site; Python 3.6, standard library only.

`python3 -I - ARCHIVE FLAT ID` reads what `docker save` writes, or an OCI image layout in a tar, and prints one JSON object
with the image's environment and entry point. Layers are read member by member, the last one first (OCI image
specification, "Image Layer Filesystem Changeset"); nothing is unpacked, and no name in them is ever opened here.
"""

import hashlib
import json
import os
import posixpath
import re
import sys
import tarfile
from typing import IO, Any, Dict, Iterator, List, Optional, Set, Tuple

MOST_MEMBERS = 2000000
MOST_GROWTH = 200  # times the archive's own size,
LEAST_LIMIT = 1 << 30  # but a small archive may grow to this
LARGEST_JSON = 4 << 20
FOLDERS = ("dev", "proc", "sys", "tmp", "etc", "mnt", "mnt/0", "mnt/1")
FILES = ("etc/passwd", "etc/group", "etc/hosts", "etc/resolv.conf")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})\Z")
_HOPS = 10


class BadArchiveError(Exception):
    """An archive that is not an image, or is not safe to unpack."""


class Archive(object):
    """The members of an image archive by name."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._members = {clean_name(member.name): member for member in tar}

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def open(self, name: str) -> IO[bytes]:
        """Open a member's content; docker's archives link to layers that they store once."""
        for _ in range(_HOPS):
            member = self._members.get(name)
            if member is None:
                break
            if member.isreg():
                stream = self._tar.extractfile(member)
                assert stream is not None
                return stream
            link = member.linkname
            name = clean_path(posixpath.join(posixpath.dirname(name), link) if member.issym() else link)
        raise BadArchiveError("it has no {}".format(name))

    def read(self, name: str) -> bytes:
        """Read a small member completely."""
        content = self.open(name).read(LARGEST_JSON + 1)
        if len(content) > LARGEST_JSON:
            raise BadArchiveError("{} is too large".format(name))
        return content

    def json(self, name: str) -> Any:
        """Parse a small member as JSON."""
        return json.loads(self.read(name).decode("utf-8"))

    def find_image(self, wanted: str) -> Tuple[Any, List[str]]:
        """Return configuration and layers, lowest first, of image `wanted` (64 hexadecimal digits)."""
        for config, layers in self._images():
            content = self.read(clean_path(config))
            if hashlib.sha256(content).hexdigest() == wanted:
                return json.loads(content.decode("utf-8")), [clean_path(layer) for layer in layers]
        raise BadArchiveError("it does not contain the image {}".format(wanted))

    def _images(self) -> Iterator[Tuple[str, List[str]]]:
        if "manifest.json" in self:
            for each in self.json("manifest.json"):
                yield each["Config"], each["Layers"]
        else:
            for each in self._manifests("index.json", 0):
                yield blob_name(each["config"]), [blob_name(layer) for layer in each["layers"]]

    def _manifests(self, index: str, depth: int) -> Iterator[Any]:
        for each in self.json(index)["manifests"]:
            name = blob_name(each)
            found = self.json(name)
            if "config" in found:
                yield found
            elif "manifests" in found and depth < 2:
                for inner in self._manifests(name, depth + 1):
                    yield inner


def blob_name(descriptor: Any) -> str:
    """Return the member that an OCI descriptor refers to."""
    found = _DIGEST.match(descriptor["digest"])
    if not found:
        raise BadArchiveError("it uses a digest other than sha256")
    return "blobs/sha256/" + found.group(1)


def clean_name(name: str) -> str:
    """Return the name relative to the root, "" for the root; refuse a name that leaves the root."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise BadArchiveError("a name in it leaves the root")
    return "/".join(parts)


def clean_path(path: str) -> str:
    """Return a normalized path, which may contain `..` inside the root."""
    return clean_name(posixpath.normpath(path))


def parents_of(name: str) -> Iterator[str]:
    """Yield every parent folder of a name."""
    while "/" in name:
        name = posixpath.dirname(name)
        yield name


class Flat(object):
    """The file tree as it is written: the first entry of a name is kept, lower layers add the missing ones.

    `_folders` are written or implied by entries in them (`_implied`), `_others` are files and links, so that
    nothing is written below a link. `_hidden` are the whiteouts of the layers above; a name that ends in a
    slash hides the folder's content.
    """

    def __init__(self, target: tarfile.TarFile, most_bytes: int) -> None:
        self._target = target
        self._bytes_left = most_bytes
        self._members = 0
        self._folders = set()  # type: Set[str]
        self._implied = set()  # type: Set[str]
        self._others = set()  # type: Set[str]
        self._hidden = set()  # type: Set[str]
        for name in FOLDERS:
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            self._put(member, None)

    def add_layer(self, layer: tarfile.TarFile) -> None:
        """Add the entries of a layer that the layers above neither contain nor hide."""
        hidden = set()  # type: Set[str]
        written = set()  # type: Set[str]
        for member in layer:
            self._members += 1
            if self._members > MOST_MEMBERS:
                raise BadArchiveError("it has too many files")
            name = clean_name(member.name)
            above, _, last = name.rpartition("/")
            if last == ".wh..wh..opq":
                hidden.add(above + "/")
            elif last.startswith(".wh."):
                hidden.add(posixpath.join(above, last[len(".wh.") :]))
            elif name and self._is_open(name, member.isdir()):
                self._add(layer, member, name, written)
                written.add(name)
        self._hidden |= hidden

    def _is_open(self, name: str, is_folder: bool) -> bool:
        """Return whether no earlier entry or whiteout excludes the name."""
        if name in self._others or name in self._folders or name in self._hidden or "/" in self._hidden:
            return False
        if name in self._implied and not is_folder:
            return False
        for above in parents_of(name):
            if above in self._others or above in self._hidden or above + "/" in self._hidden:
                return False
        return True

    def _add(self, layer: tarfile.TarFile, member: tarfile.TarInfo, name: str, written: Set[str]) -> None:
        plain = tarfile.TarInfo(name)
        plain.mtime = int(member.mtime)
        plain.mode = member.mode & 0o777 | (0o700 if member.isdir() else 0o400)
        if member.isdir():
            plain.type = tarfile.DIRTYPE
            self._put(plain, None)
        elif member.issym():
            plain.type, plain.linkname = tarfile.SYMTYPE, member.linkname
            self._put(plain, None)
        elif member.islnk() and clean_name(member.linkname) in written & self._others:
            plain.type, plain.linkname = tarfile.LNKTYPE, clean_name(member.linkname)
            self._put(plain, None)
        elif member.isreg() or member.islnk():  # the other name of this one is hidden or replaced
            stream = layer.extractfile(member)
            if stream is not None:
                plain.size = stream.seek(0, 2)
                stream.seek(0)
                self._put(plain, stream)
        # users may not create devices

    def _put(self, member: tarfile.TarInfo, stream: "Optional[IO[bytes]]") -> None:
        self._bytes_left -= member.size
        if self._bytes_left < 0:
            raise BadArchiveError("its content is much larger than the archive")
        self._target.addfile(member, stream)
        (self._folders if member.isdir() else self._others).add(member.name)
        self._implied.update(parents_of(member.name))

    def finish(self) -> None:
        """Add the entries that every container runtime requires."""
        self._hidden = set()
        for name in FILES:
            if self._is_open(name, False):
                member = tarfile.TarInfo(name)
                member.mode = 0o644
                self._put(member, None)


def flatten(source: str, target: str, wanted: str) -> Dict[str, Any]:
    """Write the tar; return the image's environment and entry point."""
    names = {"encoding": "utf-8", "errors": "surrogateescape"}  # type: Dict[str, Any]
    with tarfile.open(source, **names) as tar:
        archive = Archive(tar)
        config, layers = archive.find_image(wanted)
        with tarfile.open(target, "w", format=tarfile.GNU_FORMAT, **names) as flat:
            tree = Flat(flat, max(LEAST_LIMIT, MOST_GROWTH * os.path.getsize(source)))
            for name in reversed(layers):
                with tarfile.open(fileobj=archive.open(name), **names) as layer:
                    tree.add_layer(layer)
            tree.finish()
    settings = config.get("config") or {}
    return {"environment": settings.get("Env") or [], "entrypoint": settings.get("Entrypoint") or []}


if __name__ == "__main__":
    try:
        print(json.dumps(flatten(*sys.argv[1:4])))
    except (BadArchiveError, tarfile.TarError, ValueError, LookupError, TypeError, EOFError) as problem:
        sys.stderr.write("this image cannot be unpacked: {}\n".format(problem))
        sys.exit(65)
    except OSError as problem:
        sys.stderr.write("{}\n".format(problem))
        sys.exit(74)
