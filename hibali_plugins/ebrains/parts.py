"""Upload large objects in parts, of which an interrupted upload keeps those that are stored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from hibali.errors import IncompleteError, NotFoundError, TryLaterError
from hibali.http.client import Bytes
from hibali_plugins.ebrains.requests import DataProxy
from transfers.stores.server.state_records import StateRecord

MOST_SINGLE = 5 * 1024**3  # of one PUT, at S3 as at Swift
_PART_BYTES = 64 * 1024 * 1024
_MOST_PARTS = 10_000


def send_in_parts(proxy: DataProxy, key: bytes, pieces: Iterator[Bytes], size: int) -> None:
    """Write an object of which `size` bytes come in pieces; parts that an interrupted upload stored are not sent again.

    Raises:
        TryLaterError: `busy` if the service no longer has an interrupted upload; the next attempt begins anew.
    """
    part_bytes = max(min(_PART_BYTES, proxy.settings.multipart), -(-size // _MOST_PARTS))
    record = StateRecord("ebrains", "upload", proxy.subject, f"{proxy.address}\n".encode() + key)
    kept = _kept(record.read(), size, part_bytes)
    upload, parts = kept or (proxy.begin_parts(key), [])
    for number, content in enumerate(_joined(pieces, part_bytes)):
        digest = hashlib.sha256(content).hexdigest()
        if number < len(parts) and parts[number][1] == digest:
            continue
        try:
            tag = proxy.send_part(key, upload, number + 1, content)
        except NotFoundError:
            record.remove()
            if kept is None:
                raise
            raise _forgotten(proxy) from None
        parts[number : number + 1] = [(tag, digest)]
        record.write({"upload": upload, "size": size, "part_bytes": part_bytes, "parts": parts})
    try:
        proxy.complete_parts(key, upload, [tag for tag, _ in parts])
    except NotFoundError:
        record.remove()
        # or the answer to an earlier completion was lost, which a second upload does not harm
        raise _forgotten(proxy) from None
    except IncompleteError:
        record.remove()
        raise
    record.remove()
    record.remove_old()


def _forgotten(proxy: DataProxy) -> TryLaterError:
    message = "the service no longer has the interrupted upload, which begins anew"
    return TryLaterError("busy", message, subject=proxy.subject)


def _kept(found: dict[str, Any], size: int, part_bytes: int) -> tuple[str, list[tuple[str, str]]] | None:
    """Return the id and the parts, with ETag and sha256, of an interrupted upload of an object of this size; None without one."""
    try:
        if (found["size"], found["part_bytes"]) != (size, part_bytes):
            return None
        return str(found["upload"]), [(str(tag), str(digest)) for tag, digest in found["parts"]]
    except (KeyError, TypeError, ValueError):
        return None


def _joined(pieces: Iterator[Bytes], part_bytes: int) -> Iterator[bytes]:
    """Yield the content in parts of this size, and the rest."""
    held = bytearray()
    for piece in pieces:
        held += piece
        while len(held) >= part_bytes:
            yield bytes(held[:part_bytes])
            del held[:part_bytes]
    if held:
        yield bytes(held)
