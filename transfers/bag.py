"""The tag files of a BagIt bag (RFC 8493) around a payload that stays where it is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import date
from itertools import islice
from pathlib import Path

from hibali.errors import IncompleteError, RefusedError, UsageError
from hibali.system_errors import reason_of
from hibali.text import printable
from hibali.whole_file import WholeFile
from transfers.inventory import Hashed, Inventory
from transfers.manifest import PAYLOAD, write_bag_line

MANIFEST, INFO, DECLARATION = "manifest-sha256.txt", "bag-info.txt", "bagit.txt"
TAG_MANIFEST = "tagmanifest-sha256.txt"
_DECLARED = b"BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n"
_NAMED = 5


def write_bag(
    stock: Inventory, folder: Path, day: date, software: str, watch: Callable[[Hashed], None]
) -> None:
    """Hash what is in stock and write the four tag files into `folder`, which is made; it names the payload `data/`.

    `watch` sees each file as it was hashed.

    Raises `RefusedError` where a tag file stands there already and for what a bag cannot hold, before anything is
    hashed, and `IncompleteError` where not all could be read: then there is no bag.
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
                f"{stock.failures} could not be read, and a bag has to have all: none was written",
                about=str(folder),
            )
        digests[MANIFEST] = summed.hexdigest()
        manifest.commit()
    _write(folder, INFO, _info(files, size, day, software), digests)
    digests[DECLARATION] = hashlib.sha256(_DECLARED).hexdigest()
    lines = [f"{digests[name]}  {name}\n" for name in sorted(digests)]
    _write(folder, TAG_MANIFEST, "".join(lines).encode("ascii"), {})
    # the declaration comes last: a folder without it is no bag
    _write(folder, DECLARATION, _DECLARED, {})


def _check_payload(stock: Inventory) -> None:
    tree = stock.tree
    if tree.unlisted:
        raise IncompleteError(
            "bag-incomplete", "not all of it could be listed; they are named above", about=tree.location.text
        )
    if tree.links.count or tree.specials:
        names = "; ".join(printable(entry.path) for entry in islice(tree.links, _NAMED))
        raise RefusedError(
            "not-baggable",
            f"a bag holds neither symlinks ({tree.links.count}) nor special files ({tree.specials}): {names}",
            about=tree.location.text,
            hint="Put files in their place, or copy it with --links skip. Nothing was written.",
        )
    foreign = [entry.path for entry in tree.files if not _is_utf8(entry.path)]
    if foreign:
        names = "; ".join(printable(path) for path in foreign[:_NAMED])
        raise RefusedError(
            "unsafe-name",
            f"a bag's names are UTF-8, and {len(foreign)} here are not: {names}",
            about=tree.location.text,
            hint="Rename them. Nothing was written.",
        )


def _check_folder(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
        standing = [name for name in (MANIFEST, INFO, DECLARATION, TAG_MANIFEST) if (folder / name).exists()]
    except OSError as problem:
        reason = reason_of(problem)
        raise UsageError("unwritable-folder", f"it cannot be made: {reason}", about=str(folder)) from None
    if standing:
        raise RefusedError(
            "already-a-bag",
            f"there is {', '.join(standing)} already",
            about=str(folder),
            hint="Name another folder, or move them away. Nothing was written.",
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
