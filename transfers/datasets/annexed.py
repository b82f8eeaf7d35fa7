"""How git-annex names content: keys, the symlinks that lead to it, and pointer files that stand for it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from hibali.annex_key import digest_of, size_of

POINTER_BYTES = 32 * 1024  # git-annex takes nothing larger for a pointer file
_OBJECTS = b"/.git/annex/objects/"
POINTER = b"/annex/objects/"  # how one begins
_KEY = re.compile(rb"[A-Z0-9_]+(?:-[a-zA-Z][0-9]+)*--[^/\n\0]+")


@dataclass(frozen=True, slots=True)
class Key:
    """The name of some content; `size` and `sha256` (hexadecimal) where the name tells them, else -1 and None."""

    name: bytes
    size: int
    sha256: str | None


def read_key(name: bytes) -> Key | None:
    """The key of that name (git-annex, "key format"), or None for what is none."""
    if not _KEY.fullmatch(name):
        return None
    text = os.fsdecode(name)
    size = size_of(text)
    return Key(name, -1 if size is None else size, digest_of(text))


def key_of_link(link: bytes, folder: bytes) -> tuple[bytes, bytes, Key] | None:
    """What a symlink in `folder` (absolute) leads to: a repository's root, the path below its objects, the key.

    None for every other symlink, however much it looks like one.
    """
    if _OBJECTS[1:] not in link or link.startswith(b"/"):
        return None
    root, _, below = os.path.normpath(folder + b"/" + link).partition(_OBJECTS)
    parts = below.split(b"/")
    if len(parts) < 2 or parts[-1] != parts[-2]:
        return None
    key = read_key(parts[-1])
    return (root, below, key) if key is not None else None


def key_of_pointer(content: bytes) -> Key | None:
    """The key that a pointer file stands for; None for a file that is none."""
    if not content.startswith(POINTER):
        return None
    return read_key(content[len(POINTER) :].partition(b"\n")[0])
