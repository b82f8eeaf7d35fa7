"""Read and write manifests: `sha256sum` lines and BagIt bags (RFC 8493)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from itertools import islice
from pathlib import Path
from typing import IO, Any

from hibali.documents import missing_file
from hibali.errors import AccessError, IncompleteError, RefusedError, UsageError
from hibali.files import WholeFile
from hibali.system_errors import reason_of, unreadable
from hibali.text import counted, printable
from transfers.inventory import Hashed, Inventory
from transfers.model.facts import unsafe_component

PAYLOAD = b"data/"  # the folder of a bag's payload
_LINE_LIMIT = 16 * 1024
_PATH_LIMIT = 4096
_NAMED = 20  # the limit of reported bad lines; reading stops there
_LINE = re.compile(rb"([0-9A-Fa-f]+) [ *](.+)", re.DOTALL)
_BAG_LINE = re.compile(rb"([0-9A-Fa-f]+)[ \t]+\*?(.+)", re.DOTALL)
_BAG_NAME = re.compile(rb"(tag)?manifest-sha256\.txt")
_DIGITS = 64
_ESCAPES = {b"\\": b"\\\\", b"\n": b"\\n", b"\r": b"\\r"}
_MEANINGS = {escape: byte for byte, escape in _ESCAPES.items()}


@dataclass(slots=True)
class Manifest:
    """The content of a manifest: path to sha256 in hexadecimal. `fingerprint` is the sha256 of its own text.

    `below` is the prefix that it covers: a bag's payload manifest does not list files outside of `data/`.
    """

    name: str
    digests: dict[bytes, str] = field(default_factory=dict)
    fingerprint: str = ""
    below: bytes = b""


class MalformedManifestError(UsageError):
    """An error for invalid lines; `problems` has `line` (from 1) and `message` of each."""

    def __init__(self, name: str, problems: list[dict[str, Any]]) -> None:
        super().__init__("malformed-manifest", _list_problems(problems), subject=name, hint=_HINT)
        self.problems = problems


class UnsafeManifestError(RefusedError):
    """An error for names that could lead outside of the tree (S1).

    `problems` has `line` (from 1) and `message` of each.
    """

    def __init__(self, name: str, problems: list[dict[str, Any]]) -> None:
        super().__init__("unsafe-name", _list_problems(problems), subject=name, hint=_HINT)
        self.problems = problems


_HINT = "Nothing was hashed. Correct the manifest, or ask its author for a new one."


def is_bag_name(name: str) -> bool:
    """Return whether this is the name of a bag's manifest."""
    return _BAG_NAME.fullmatch(name.rpartition("/")[2].encode("utf-8", "surrogateescape")) is not None


def write_line(path: bytes, digest: str) -> bytes:
    r"""Return a line as `sha256sum` writes it; if `\`, LF or CR are escaped, it starts with a `\`."""
    escaped = re.sub(rb"[\\\n\r]", lambda found: _ESCAPES[found.group()], path)
    mark = b"\\" if escaped != path else b""
    return mark + digest.encode("ascii") + b"  " + escaped + b"\n"


def write_bag_line(path: bytes, digest: str) -> bytes:
    """Return a line of a bag's manifest; only CR, LF and `%` are percent-encoded (RFC 8493, 2.1.3)."""
    encoded = re.sub(rb"[\r\n%]", lambda found: b"%%%02X" % ord(found.group()), path)
    return digest.encode("ascii") + b"  " + encoded + b"\n"


def open_manifest(path: str, *, bag: bool = False) -> Manifest:
    """Read an untrusted manifest from a local file; `bag`, or its name, says that it is one of BagIt.

    Raises `NotFoundError`, `AccessError`, `UsageError` if it cannot be opened, and what `read_manifest` raises.
    """
    try:
        with Path(path).open("rb") as stream:
            return read_manifest(stream, path, bag=bag or is_bag_name(path))
    except (FileNotFoundError, NotADirectoryError):
        raise missing_file(path) from None
    except PermissionError:
        raise AccessError("denied", "permission denied", subject=path) from None
    except OSError as problem:
        raise unreadable(problem, path) from None


def read_manifest(stream: IO[bytes], name: str, *, bag: bool = False) -> Manifest:
    """Read an untrusted manifest; with `bag`, names are percent-encoded as in a bag.

    Raises `UnsafeManifestError` (8) for absolute names and names with `..`, `MalformedManifestError` (2) for
    invalid lines, duplicate names, and a manifest without lines.
    """
    found = Manifest(name)
    summed = hashlib.sha256()
    problems: list[dict[str, Any]] = []
    unsafe = False
    number = 0
    while (line := stream.readline(_LINE_LIMIT + 1)) and len(problems) < _NAMED:
        number += 1
        summed.update(line)
        try:
            _read_entry(found, line, _read_bag_line if bag else _read_line)
        except _LineError as problem:
            problems.append({"line": number, "message": str(problem)})
            unsafe = unsafe or problem.unsafe
            while line and not line.endswith(b"\n"):
                line = stream.readline(_LINE_LIMIT)
    if unsafe:
        raise UnsafeManifestError(name, problems)
    if problems or not found.digests:
        raise MalformedManifestError(name, problems or [{"line": 0, "message": "the manifest is empty"}])
    found.fingerprint = summed.hexdigest()
    if bag and all(path.startswith(PAYLOAD) for path in found.digests):
        found.below = PAYLOAD
    return found


class _LineError(Exception):
    def __init__(self, message: str, *, unsafe: bool = False) -> None:
        super().__init__(message)
        self.unsafe = unsafe


def _read_entry(found: Manifest, line: bytes, read_line: Callable[[bytes], tuple[bytes, str]]) -> None:
    if len(line) > _LINE_LIMIT:
        raise _LineError(f"the line is longer than {_LINE_LIMIT} bytes")
    # a CR at the end is from a Windows text file; one in a name is escaped
    text = line.removesuffix(b"\n").removesuffix(b"\r")
    if not text.strip() or text.startswith(b"#"):
        return
    path, digest = read_line(text)
    while path.startswith(b"./"):  # as `find` prints names
        path = path[2:].lstrip(b"/")
    reason = unsafe_component(path)
    if reason:
        raise _LineError(f"the name {printable(path[:80])}: {reason}", unsafe=True)
    if len(path) > _PATH_LIMIT:
        raise _LineError(f"the name has {len(path)} bytes; the limit is {_PATH_LIMIT}")
    if len(digest) != _DIGITS:
        raise _LineError(f"the digest has {len(digest)} digits; a sha256 has {_DIGITS}")
    if path in found.digests:
        raise _LineError(f"the name {printable(path[:80])} is listed twice")
    found.digests[path] = digest.lower()


def _read_line(text: bytes) -> tuple[bytes, str]:
    escaped = text.startswith(b"\\")
    found = _LINE.fullmatch(text[1:] if escaped else text)
    if found is None:
        raise _LineError("expected a digest, two spaces and a name, as sha256sum writes them")
    path = found.group(2)
    return _unescaped(path) if escaped else path, found.group(1).decode("ascii")


def _unescaped(path: bytes) -> bytes:
    parts = re.findall(rb"\\.?|[^\\]+", path, re.DOTALL)
    try:
        return b"".join(_MEANINGS[part] if part.startswith(b"\\") else part for part in parts)
    except KeyError:
        raise _LineError("the name has a backslash escape that sha256sum does not write") from None


def _read_bag_line(text: bytes) -> tuple[bytes, str]:
    found = _BAG_LINE.fullmatch(text)
    if found is None:
        raise _LineError("expected a digest, a space and a name, as in a BagIt manifest")
    path = re.sub(
        rb"%(0[AaDd]|25)", lambda encoded: bytes.fromhex(encoded.group(1).decode("ascii")), found.group(2)
    )
    return path, found.group(1).decode("ascii")


def _list_problems(problems: list[dict[str, Any]]) -> str:
    more = "; hibali stopped reading there" if len(problems) >= _NAMED else ""
    lines = [f"line {found['line']}: {found['message']}" for found in problems]
    return "\n".join([f"the manifest has {counted(len(problems), 'invalid line')}{more}", *lines])


MANIFEST, INFO, DECLARATION = "manifest-sha256.txt", "bag-info.txt", "bagit.txt"
TAG_MANIFEST = "tagmanifest-sha256.txt"
_DECLARED = b"BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n"
_MOST_NAMED_IN_BAG = 5


def write_bag(
    stock: Inventory, folder: Path, day: date, software: str, watch: Callable[[Hashed], None]
) -> None:
    """Hash the files and write the four tag files of a bag into `folder`, which is created.

    The payload is `data/`. `watch` is called with each hashed file. Raises `RefusedError`, before anything is
    hashed, if a tag file exists or if a bag cannot have an entry, and `IncompleteError` if a file could not
    be read: then no bag is written.
    """
    _check_payload(stock)
    _check_folder(folder)
    files = size = 0
    digests: dict[str, str] = {}
    with WholeFile(folder / MANIFEST) as manifest:
        summed = hashlib.sha256()
        for hashed in stock.hashed():
            watch(hashed)
            line = write_bag_line(PAYLOAD + hashed.entry.path, hashed.digest)
            manifest.write(line)
            summed.update(line)
            files += 1
            size += hashed.entry.size
        if stock.failures:
            raise IncompleteError(
                "bag-incomplete",
                f"{counted(stock.failures, 'file')} could not be read; a bag must contain all files, so none was written",
                subject=str(folder),
            )
        digests[MANIFEST] = summed.hexdigest()
        manifest.commit()
    _write(folder, INFO, _info(files, size, day, software), digests)
    digests[DECLARATION] = hashlib.sha256(_DECLARED).hexdigest()
    lines = [f"{digests[name]}  {name}\n" for name in sorted(digests)]
    _write(folder, TAG_MANIFEST, "".join(lines).encode("ascii"), {})
    # last, because a folder without the declaration is no bag
    _write(folder, DECLARATION, _DECLARED, {})


def _check_payload(stock: Inventory) -> None:
    tree = stock.tree
    if tree.unlisted:
        raise IncompleteError(
            "bag-incomplete",
            "some folders could not be listed; see above",
            subject=tree.location.text,
        )
    if tree.links.count or tree.specials:
        names = "; ".join(printable(entry.path) for entry in islice(tree.links, _MOST_NAMED_IN_BAG))
        raise RefusedError(
            "not-baggable",
            f"a bag cannot contain symlinks ({tree.links.count}) or special files ({tree.specials}): {names}",
            subject=tree.location.text,
            hint="Replace them with files, or copy the folder with --links skip. Nothing was written.",
        )
    foreign = [entry.path for entry in tree.files if not _is_utf8(entry.path)]
    if foreign:
        names = "; ".join(printable(path) for path in foreign[:_MOST_NAMED_IN_BAG])
        raise RefusedError(
            "unsafe-name",
            f"the names in a bag must be UTF-8, unlike {counted(len(foreign), 'name')} here: {names}",
            subject=tree.location.text,
            hint="Rename them. Nothing was written.",
        )


def _check_folder(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
        existing = [name for name in (MANIFEST, INFO, DECLARATION, TAG_MANIFEST) if (folder / name).exists()]
    except OSError as problem:
        reason = reason_of(problem)
        raise UsageError(
            "unwritable-folder", f"the folder cannot be created: {reason}", subject=str(folder)
        ) from None
    if existing:
        raise RefusedError(
            "already-a-bag",
            f"the folder already contains {', '.join(existing)}",
            subject=str(folder),
            hint="Name another folder, or move these files. Nothing was written.",
        )


def _info(files: int, size: int, day: date, software: str) -> bytes:
    return (
        f"Bag-Software-Agent: {software}\nBagging-Date: {day.isoformat()}\nPayload-Oxum: {size}.{files}\n"
    ).encode()


def _write(folder: Path, name: str, content: bytes, digests: dict[str, str]) -> None:
    with WholeFile(folder / name) as file:
        file.write(content)
        file.commit()
    digests[name] = hashlib.sha256(content).hexdigest()


def _is_utf8(path: bytes) -> bool:
    try:
        path.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
