"""Write XML with document types and entities, in any encoding, as no server should send it."""

from __future__ import annotations

LAUGHS = '<!DOCTYPE a [<!ENTITY x "ha"><!ENTITY y "&x;&x;&x;">]>'
EXTERNAL = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
ENCODINGS = ["utf-8", "utf-16", "utf-16-le", "utf-16-be", "cp037", "latin-1"]


def document(encoding: str, declared: str, root: str) -> bytes:
    """Return a document with this declaration and root element in an encoding."""
    name = "utf-16" if encoding.startswith("utf-16") else encoding
    text = f'<?xml version="1.0" encoding="{name}"?>{declared}{root}'
    raw = text.encode(encoding)
    return {"utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff"}.get(encoding, b"") + raw
