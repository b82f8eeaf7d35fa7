"""Parse and build git-annex keys, and derive where their contents are stored (git-annex's page "hashing")."""

from __future__ import annotations

import hashlib
import re

from hibali.errors import UsageError

_LONGEST = 4  # git-annex's own annex.maxextensionlength: "jpeg"
_MOST = 2  # and its limit of extensions: "tar.gz"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_CHUNK = re.compile(rb"-S[0-9]+-C[0-9]+")
_SHA256 = re.compile(r"SHA256E?(?:-[sm][0-9]+)*--([0-9a-f]{64})(?:\..*)?", re.DOTALL)
_FIELD = re.compile(r"-([sSC])([0-9]{1,18})(?![0-9])")
_ESCAPES = ((b"&", b"&a"), (b"%", b"&s"), (b":", b"&c"), (b"/", b"%"))
_ESCAPED = {escaped: plain for plain, escaped in _ESCAPES}
_ESCAPED_PART = re.compile(rb"&[asc]|%")


def extension_of(name: str) -> str:
    """Return the extension that a SHA256E key keeps of a file's name: ".nii.gz" of "bold.nii.gz", "" of "README".

    At most the last two extensions, up to four bytes each, of letters and digits; non-ASCII characters count as letters.
    Names that are not UTF-8 hold surrogate escapes.
    """
    shown = name.rpartition("/")[2].lstrip(".")
    if "." not in shown:
        return ""
    parts = shown.partition(".")[2].split(".")
    accepted: list[str] = []
    for part in reversed(parts):
        if len(_bytes(part)) > _LONGEST:
            break
        if all(letter.isalnum() or not letter.isascii() for letter in part):
            accepted.append(part)
    return "".join(f".{part}" for part in reversed(accepted[:_MOST]) if part)


def key_of(size: int, digest: str, extension: str = "") -> str:
    """Return the SHA256E key of a content, from its size in bytes, its sha256 in hexadecimal, and an extension (`extension_of`).

    Raises `UsageError` for values that a key cannot have.
    """
    if size < 0 or not _DIGEST.fullmatch(digest) or extension_of(f"x{extension}") != extension:
        raise UsageError(
            "bad-key",
            "these are not a valid size, sha256 and extension",
            subject=f"{size} {digest} {extension}",
        )
    return f"SHA256E-s{size}--{digest}{extension}"


def place_of(key: str) -> str:
    """Return the path of a content below a special remote: `xxx/yyy/KEY`, git-annex's lower directory hash and the key as it names files.

    All chunks of a content share its folder. Raises `UsageError` for an invalid key.
    """
    raw = _bytes(key)
    if b"--" not in raw or raw.startswith((b"-", b".")) or b"\n" in raw or b"\0" in raw:
        raise UsageError("bad-key", "this is not a valid key of git-annex", subject=key)
    fields, _, name = raw.partition(b"--")
    hashed = hashlib.md5(_CHUNK.sub(b"", fields) + b"--" + name, usedforsecurity=False).hexdigest()
    for plain, escaped in _ESCAPES:
        raw = raw.replace(plain, escaped)
    return f"{hashed[:3]}/{hashed[3:6]}/{raw.decode('utf-8', 'surrogateescape')}"


def key_of_name(name: bytes) -> bytes:
    """Return the key that a file's name, or a pointer, has in git-annex's escaped form, as URLs in keys need it."""
    return _ESCAPED_PART.sub(lambda matched: _ESCAPED[matched[0]], name)


def size_of(key: str) -> int | None:
    """Return the size in bytes of the content (or chunk) of a key; None where the key does not contain it."""
    fields = dict(_FIELD.findall(key.partition("--")[0]))
    size, chunk, number = (int(fields[name]) if name in fields else None for name in "sSC")
    if size is None or chunk is None or number is None:
        return size
    return max(0, min(chunk, size - (number - 1) * chunk))


def digest_of(key: str) -> str | None:
    """Return the sha256 in hexadecimal of the content of a key; None where the key does not contain it, as those of chunks."""
    found = _SHA256.fullmatch(key)
    return found.group(1) if found else None


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
