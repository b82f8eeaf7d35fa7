"""The names that hibali itself puts beside data, and how its partial files are told from a user's."""

import hashlib
import hmac
import re

FOLDER = b".hibali"
PACKS = b"packs"  # in that folder, the indexes of a place whose files are packed
OWN = (b"lock", b"journal", b"begun", b"manifest.jsonl")

# What somebody who takes or breaks a lock, or writes a journal, has beside it for a moment.
_LOCK_PART = re.compile(rb"\A(?:lock|broken|journal|begun)\.[0-9a-f]{32}\Z")
_PARTIAL = re.compile(rb"\A\.hibali-([0-9a-f]{16})([0-9a-f]{16})\Z")


def is_lock_part(name: bytes) -> bool:
    """Whether a name in `.hibali` is of somebody taking a lock or writing a journal, or left by one who was killed at it."""
    return _LOCK_PART.match(name) is not None


def partial_name(seed: bytes, path: bytes) -> bytes:
    """The partial name for `path` under an operation's secret seed.

    Its second half authenticates the first, so that whoever holds the seed knows every partial of this
    operation without a journal line for each.
    """
    nonce = hmac.new(seed, b"path:" + path, hashlib.sha256).hexdigest()[:16].encode("ascii")
    return b".hibali-" + nonce + _seal(seed, nonce)


def has_partial_shape(name: bytes) -> bool:
    """Whether a user could mistake this name for one of ours."""
    return _PARTIAL.match(name) is not None


def is_partial_of(seed: bytes, name: bytes) -> bool:
    """Whether this very seed made the name."""
    found = _PARTIAL.match(name)
    return found is not None and hmac.compare_digest(found.group(2), _seal(seed, found.group(1)))


def _seal(seed: bytes, nonce: bytes) -> bytes:
    return hmac.new(seed, b"seal:" + nonce, hashlib.sha256).hexdigest()[:16].encode("ascii")
