"""The few XML documents of the S3 protocol, read within limits and written by construction."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes
from xml.sax.saxutils import escape

from hibali import xml_document

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


parse = xml_document.parse
_ODD = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\ufffe\\uffff]")


def cut_rows(body: bytes, element: bytes, wanted: Sequence[bytes]) -> tuple[list[tuple[bytes, ...]], bytes]:
    """The texts of the `wanted` children of each `element` that is written as the first one is, and the document without these.

    For what comes in thousands: a search for the very layout that this server writes is many times as fast as
    a parser. Whatever looks otherwise stays in the document, for `parse`. Texts hold no entities.
    """
    first = re.search(rb"<%s>((?:<\w+>[^<]*</\w+>)+)</%s>" % (element, element), body)
    names = tuple(re.findall(rb"<(\w+)>", first.group(1))) if first and b"<!" not in body else ()
    if any(names.count(name) != 1 for name in wanted):
        return [], body
    parts = _layout(element, names, frozenset(wanted)).split(body)
    step = len(wanted) + 1
    order = [name for name in names if name in wanted]
    columns = [parts[order.index(name) + 1 :: step] for name in wanted]
    return list(zip(*columns, strict=True)), b"".join(parts[::step])


@lru_cache(maxsize=8)
def _layout(element: bytes, names: tuple[bytes, ...], wanted: frozenset[bytes]) -> re.Pattern[bytes]:
    """An element with just these children in this order; an ETag is taken without its quotes."""
    quote = rb"""(?:&quot;|&#34;|")"""
    taken = dict.fromkeys(wanted, rb"([^<&]*)")
    if b"ETag" in taken:
        taken[b"ETag"] = quote + rb'([^<&"]*)' + quote
    texts = (rb"<%s>%s</%s>" % (name, taken.get(name, rb"[^<]*"), name) for name in names)
    return re.compile(rb"<%s>%s</%s>" % (element, b"".join(texts), element))


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


def raw_key(word: bytes, *, encoded: bool) -> bytes:
    """The same for a text in the bytes of the document, which are UTF-8."""
    if not encoded or (b"%" not in word and b"+" not in word):
        return word
    return unquote_to_bytes(word.replace(b"+", b" "))


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
