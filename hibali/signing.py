"""Sign files that are executed later with a key that only this account has (S22)."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from hibali.errors import RefusedError
from hibali.files import state_folder
from hibali.system_errors import reason_of

_NAME = "signing.key"
_BYTES = 32


def sign(purpose: str, content: bytes) -> str:
    """Return the signature in hexadecimal; the key is created when missing. Raises `RefusedError` where it cannot be stored."""
    path = state_folder() / _NAME
    try:
        return _signature(_read(path) or _make(path), purpose, content)
    except OSError as problem:
        raise RefusedError(
            "state-unwritable",
            f"the key for signatures cannot be stored: {reason_of(problem)}",
            subject=str(path),
            hint="Free some space there, or set HIBALI_STATE to another folder that belongs to you.",
        ) from None


def is_signed(purpose: str, content: bytes, signature: str) -> bool:
    """Return whether `sign` made this signature with the key of this state folder."""
    try:
        key = _read(state_folder() / _NAME)
    except OSError:
        return False
    return key is not None and hmac.compare_digest(
        _signature(key, purpose, content).encode("ascii"), signature.encode("utf-8", "replace")
    )


def _signature(key: bytes, purpose: str, content: bytes) -> str:
    return hmac.new(key, purpose.encode("ascii") + b"\0" + content, hashlib.sha256).hexdigest()


def _read(path: Path) -> bytes | None:
    """Read the key, None where there is none. Raises `RefusedError` for one that others can read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as stream:  # noqa: PTH123  # opened with flags of its own
        found = os.fstat(stream.fileno())
        private = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
        key = stream.read(_BYTES + 1) if private else b""
    if len(key) != _BYTES:
        raise RefusedError(
            "not-private",
            "the key for signatures must be a file that belongs to you and that others cannot read",
            subject=str(path),
            hint="Remove it. To execute plans that were signed with it, add FROM and TO to `apply`.",
        )
    return key


def _make(path: Path) -> bytes:
    """Create a key, unless another call created one first."""
    partial = path.with_name(f".{_NAME}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(partial, flags, 0o600), "wb") as stream:  # noqa: PTH123  # opened with flags of its own
            stream.write(secrets.token_bytes(_BYTES))
            stream.flush()
            os.fsync(stream.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    key = _read(path)
    assert key is not None
    return key
