"""What hibali keeps in `.hibali` beside data at a WebDAV server, in the agent's own format: the journal of its seeds."""

from __future__ import annotations

import binascii
import contextlib
import json
import os

from hibali.errors import HibaliError
from transfers.agent import own_names
from transfers.stores.webdav_files import Files

OWN = own_names.FOLDER
_JOURNAL = OWN + b"/journal"
_LIMIT = 64 * 1024
_SEEDS = 800


def below(folder: bytes, path: bytes) -> bytes:
    """The path of `path` in `folder`, either of which may be empty."""
    return folder + b"/" + path if folder and path else folder or path


class Own:
    """Small files of our own below one root, and the folder that holds them."""

    def __init__(self, files: Files, root: bytes) -> None:
        self._files = files
        self._root = root

    def read(self, path: bytes) -> bytes | None:
        """The content of a small file below the root; None when absent."""
        try:
            return bytes(self._files.get(below(self._root, path), offset=0, length=_LIMIT).content)
        except HibaliError as problem:
            if problem.code in {"vanished", "source-changed"}:  # absent, or nothing in it
                return None
            raise

    def seeds(self, folder: bytes = b"") -> list[bytes]:
        """The seeds that unfinished operations left in `folder` below the root, the newest first."""
        content = self.read(below(folder, _JOURNAL))
        try:
            return [binascii.unhexlify(seed) for seed in json.loads(content or b"")["seeds"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            return []

    def open_seed(self, earlier: list[bytes]) -> bytes:
        """A new seed, beside the earlier ones when this returns."""
        seed = os.urandom(16)
        seeds = [one.hex() for one in [seed, *earlier][:_SEEDS]]
        content = json.dumps({"version": 1, "seeds": seeds}).encode("ascii") + b"\n"
        self._files.make_folder(below(self._root, OWN))
        self._files.put(below(self._root, _JOURNAL), content, {})
        return seed

    def end_journal(self) -> None:
        """Nothing partial is left: the journal goes."""
        with contextlib.suppress(HibaliError):
            self._files.delete(below(self._root, _JOURNAL))

    def remove_folder(self) -> None:
        """`.hibali` goes where nothing is in it: what another locks or writes there keeps it. A user's own files may stay."""
        folder = below(self._root, OWN)
        with contextlib.suppress(HibaliError):
            if next(self._files.children(folder).names, None) is None:
                self._files.delete(folder, folder=True)
