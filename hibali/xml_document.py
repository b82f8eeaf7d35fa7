"""Parse XML from elsewhere within limits: no document type, no entities, bounded depth."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from hibali.errors import TryLaterError

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element
    from xml.parsers.expat import XMLParserType

_MOST_DEPTH = 64


class Unsafe(Exception):  # noqa: N818  # raised through expat, never shown
    """The document declares what is never accepted."""


def refuse_declarations(parser: XMLParserType) -> None:
    """Make an expat parser raise `Unsafe` at a document type or an entity, in whatever encoding they are written.

    expat's own handlers see them decoded; a search for `<!DOCTYPE` in the bytes misses UTF-16 and EBCDIC.
    """

    def refuse(*_: object) -> NoReturn:
        raise Unsafe

    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.UnparsedEntityDeclHandler = refuse
    parser.ExternalEntityRefHandler = refuse


def parse(body: bytes, about: str) -> Element:
    """Return the root element. Raises `TryLaterError` for what is no XML, has a document type, or is nested too deep."""
    from xml.etree.ElementTree import ParseError, fromstring
    from xml.parsers.expat import ExpatError

    try:
        _check(body)
        return fromstring(body)  # noqa: S314  # checked
    except (ExpatError, ParseError, Unsafe, ValueError, LookupError):
        raise TryLaterError("bad-answer", "the answer is not the XML it should be", about=about) from None


def _check(body: bytes) -> None:
    from xml.parsers.expat import ParserCreate

    depth = 0

    def start(_: str, __: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > _MOST_DEPTH:
            raise Unsafe

    def end(_: str) -> None:
        nonlocal depth
        depth -= 1

    parser = ParserCreate()
    refuse_declarations(parser)
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.Parse(body, True)
