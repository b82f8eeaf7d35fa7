"""Compute the checksums that servers keep of their files, named `ALGORITHM:DIGITS`."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from typing import Any

from hibali.http.client import Bytes

_ZLIB: dict[str, tuple[Callable[[Bytes, int], int], int]] = {
    "adler32": (zlib.adler32, 1),
    "crc32": (zlib.crc32, 0),
}  # with their values of nothing
_HASHES = frozenset({"md5", "sha1", "sha256"})
ALGORITHMS = _HASHES | _ZLIB.keys()


class Checksum:
    """The checksum of content that comes in pieces, by one of `ALGORITHMS`."""

    def __init__(self, algorithm: str) -> None:
        self.algorithm = algorithm
        self._hash: Any = hashlib.new(algorithm, usedforsecurity=False) if algorithm in _HASHES else None
        self._value = 0 if self._hash else _ZLIB[algorithm][1]

    def update(self, content: Bytes) -> None:
        """Add the next piece."""
        if self._hash:
            self._hash.update(content)
        else:
            self._value = _ZLIB[self.algorithm][0](content, self._value)

    @property
    def text(self) -> str:
        """The checksum of all pieces with its algorithm."""
        return f"{self.algorithm}:{self._hash.hexdigest() if self._hash else f'{self._value:08x}'}"
