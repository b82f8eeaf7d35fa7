"""Laying what a bundle holds into a folder of this machine, under the names it had."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from hibali.errors import IncompleteError, RefusedError
from hibali.folders import private_folder, state_folder
from hibali.ledger import sync_folder
from hibali.system_errors import reason_of
from runs.bundles.archive import Archive
from runs.bundles.members import path_of
from runs.bundles.read import Bundle, large_members
from runs.bundles.record import PackedInput


def unpack(archive: Archive, bundle: Bundle, site: str) -> Path:
    """Lay inputs and image into a folder of the state folder, by the names they had; the same for the same bundle and site.

    One process at a time. What was checked before is checked again as it is written. Raises `RefusedError` where there is no room.
    """
    final = _folder(bundle, site)
    parent = final.parent
    if final.is_dir():
        return final
    wanted = sum(archive.members[member].file_size for member in large_members(bundle))
    free = shutil.disk_usage(parent).free
    if wanted > free:
        raise RefusedError(
            "no-space",
            f"its files have {wanted} bytes, and {free} are free",
            about=str(parent),
            hint="Make room there, or set HIBALI_STATE.",
        )
    partial = parent / f".{final.name}"
    shutil.rmtree(partial, ignore_errors=True)  # of a call that was killed
    private_folder(partial)
    try:
        for each in bundle.record.inputs:
            if each.included and each.type == "folder":
                (partial / _path_here(each.member)).mkdir(mode=0o700, parents=True)
        for member, digest in large_members(bundle).items():
            _write(archive, member, digest, partial / _path_here(member))
        sync_folder(partial)
        partial.rename(final)
        sync_folder(parent)
    except OSError as problem:
        raise IncompleteError("not-unpacked", reason_of(problem), about=str(parent)) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return final


def forget(bundle: Bundle, site: str) -> None:
    """Remove what `unpack` made."""
    shutil.rmtree(_folder(bundle, site), ignore_errors=True)


def _folder(bundle: Bundle, site: str) -> Path:
    return private_folder(state_folder() / "bundles") / f"{bundle.content}-{site}"


def below(files: Mapping[str, str]) -> dict[bytes, str]:
    """The digests of an input's members by their paths in the input itself, b"" for a single file, whatever it is called."""
    return {
        found[1].partition(b"/")[2]: digest
        for member, digest in files.items()
        if (found := path_of(member)) is not None
    }


def place_of(folder: Path, each: PackedInput) -> Path:
    """Where an included input lies below what `unpack` returned."""
    return folder / _path_here(each.member)


def _path_here(member: str) -> Path:
    """The name it had; the image keeps its member's."""
    found = path_of(member)
    return Path(member) if found is None else Path("inputs", str(found[0]), *os.fsdecode(found[1]).split("/"))


def _write(archive: Archive, member: str, digest: str, path: Path) -> None:
    """No name can lead elsewhere: the folder is new and ours, and holds no links."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    summed = hashlib.sha256()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with io.FileIO(os.open(path, flags, 0o600), "w") as stream:
        for piece in archive.pieces(member):
            summed.update(piece)
            view = memoryview(piece)
            while view:
                view = view[stream.write(view) :]
        os.fsync(stream.fileno())
    if summed.hexdigest() != digest:
        archive.refuse(f"{member} is not what its digest says")
