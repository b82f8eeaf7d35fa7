"""XML from elsewhere, read within limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hibali.errors import TryLaterError

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


def parse(body: bytes, about: str) -> Element:
    """The root element; a document type (and with it every entity) is refused. Raises `TryLaterError`."""
    from xml.etree.ElementTree import ParseError, fromstring  # no entities: refused below

    if b"<!DOCTYPE" not in body:
        try:
            return fromstring(body)  # noqa: S314  # see above
        except ParseError:
            pass
    raise TryLaterError("bad-answer", "the answer is not the XML it should be", about=about)
