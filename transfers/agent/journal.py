"""The journal of a target: the secret seeds by which its partial names are known."""

import binascii
import contextlib
import json
import os
from typing import Any, Dict, List, Tuple

from transfers.agent import own_names
from transfers.agent.beneath import Root

_JOURNAL = b"journal"
_LIMIT = 64 * 1024
_SEEDS = 1000  # fit the limit; so many operations in a row have to die before one is forgotten


def journal_path(folder: bytes) -> bytes:
    """Where the journal of the target at `folder` (b"" is the root) lies."""
    own = own_names.FOLDER + b"/" + _JOURNAL
    return folder + b"/" + own if folder else own


def read_seeds(root: Root, folder: bytes = b"") -> List[bytes]:
    """The seeds that unfinished operations left in `folder`, the newest first.

    Only a journal of our own account counts: somebody else's must not make us take files for partial ones.
    """
    try:
        return [binascii.unhexlify(seed) for seed in _read(root, folder)["seeds"]]
    except (ValueError, KeyError, TypeError):
        return []


def last_call(root: Root) -> str:
    """Which call landed here last, as it named itself; empty where nothing says so."""
    return str(_read(root, b"").get("call", ""))


def _read(root: Root, folder: bytes) -> Dict[str, Any]:
    try:
        descriptor = root.open_file(journal_path(folder))
    except OSError:
        return {}
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            return {}
        record = json.loads(os.read(descriptor, _LIMIT).decode("ascii"))
    except (OSError, ValueError):
        return {}
    finally:
        os.close(descriptor)
    return record if isinstance(record, dict) else {}


def open_seed(root: Root, call: str = "") -> Tuple[bytes, bool]:
    """A new seed for a landing of this `call`, durable beside the earlier ones when this returns, and whether there were earlier ones.

    Each holder of the lock has its own: one that slept past its lease and wakes up must not find another's
    partial files under names that it takes for its own.
    """
    earlier = read_seeds(root)
    seed = os.urandom(16)
    parent = root.parent(journal_path(b""), make=True)
    seeds = [one.hex() for one in [seed, *earlier][:_SEEDS]]
    content = json.dumps({"version": 1, "seeds": seeds, "call": call}).encode("ascii") + b"\n"
    name = _JOURNAL + b"." + os.urandom(16).hex().encode("ascii")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o600, dir_fd=parent)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(name, _JOURNAL, src_dir_fd=parent, dst_dir_fd=parent)
    os.fsync(parent)
    os.fsync(root.descriptor)
    return seed, bool(earlier)


def end_journal(root: Root) -> None:
    """Nothing partial is left: remove the journal; the folder goes with the lock."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_JOURNAL, dir_fd=root.parent(journal_path(b"")))
