"""The few XML documents of the S3 protocol, read within limits and written by construction."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes
from xml.sax.saxutils import escape

from hibali.errors import TryLaterError

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


_ODD = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\ufffe\\uffff]")


def parse(body: bytes, about: str) -> Element:
    """The root element; a document type (and with it every entity) is refused. Raises `TryLaterError`."""
    from xml.etree.ElementTree import ParseError, fromstring  # no entities: refused below

    if b"<!DOCTYPE" not in body:
        try:
            return fromstring(body)  # noqa: S314  # see above
        except ParseError:
            pass
    raise TryLaterError("bad-answer", "the server's answer is not the XML it should be", about=about)


def name_of(element: Element) -> str:
    """The tag without its namespace, which servers differ in."""
    return element.tag.rpartition("}")[2]


def children(element: Element, name: str) -> Iterator[Element]:
    """The direct children of that name."""
    return (child for child in element if name_of(child) == name)


def fields(element: Element) -> dict[str, str]:
    """The texts of all direct children by their names, where there is one of each; for what comes in thousands."""
    return {child.tag[child.tag.find("}") + 1 :]: child.text or "" for child in element}


def text(element: Element, name: str) -> str:
    """The text of the first direct child of that name, or nothing."""
    for child in children(element, name):
        return child.text or ""
    return ""


def key_bytes(word: str, *, encoded: bool) -> bytes:
    """A key as bytes; `encoded` where the server said EncodingType url (a space is then a plus)."""
    return unquote_to_bytes(word.replace("+", " ")) if encoded else word.encode("utf-8", "surrogateescape")


def is_plain(key: bytes) -> bool:
    """Whether XML 1.0 and obstore can hold this key: UTF-8 without control characters."""
    try:
        return _ODD.search(key.decode()) is None
    except UnicodeDecodeError:
        return False


def delete_document(keys: list[bytes]) -> bytes:
    """The body of DeleteObjects for plain keys; only failures are to be told."""
    objects = "".join(f"<Object><Key>{escape(key.decode())}</Key></Object>" for key in keys)
    return f"<Delete><Quiet>true</Quiet>{objects}</Delete>".encode()


def complete_document(etags: list[str]) -> bytes:
    """The body of CompleteMultipartUpload for parts 1, 2, ... with these ETags."""
    parts = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>&quot;{escape(etag)}&quot;</ETag></Part>"
        for number, etag in enumerate(etags, 1)
    )
    return f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
