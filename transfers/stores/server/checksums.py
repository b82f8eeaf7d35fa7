"""Compute the checksums that servers keep of their files, named `ALGORITHM:DIGITS`."""

from __future__ import annotations

import hashlib
import zlib
from typing import Any

from hibali.http.client import Bytes

_ADLER = "adler32"  # what XRootD calls crc32 is that of POSIX cksum, not that of zlib
_HASHES = frozenset({"md5", "sha1", "sha256", "sha512"})
_GIT = "gitsha1"  # the id that git gives to a file: its size is hashed, too
ALGORITHMS = _HASHES | {_ADLER}


class Checksum:
    """The checksum of content that comes in pieces, by one of `ALGORITHMS` or `gitsha1`."""

    def __init__(self, algorithm: str, size: int = 0) -> None:
        """`size` is that of the whole content in bytes, which only `gitsha1` needs."""
        self.algorithm = algorithm
        self._hash: Any = None
        self._value = zlib.adler32(b"")
        if algorithm == _GIT:
            self._hash = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        elif algorithm != _ADLER:
            self._hash = hashlib.new(algorithm, usedforsecurity=False)

    def update(self, content: Bytes) -> None:
        """Add the next piece."""
        if self._hash:
            self._hash.update(content)
        else:
            self._value = zlib.adler32(content, self._value)

    @property
    def text(self) -> str:
        """The checksum of all pieces with its algorithm."""
        return f"{self.algorithm}:{self._hash.hexdigest() if self._hash else f'{self._value:08x}'}"
