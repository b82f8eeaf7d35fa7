"""Elements of a page; whatever text comes into them is escaped by construction (S17)."""

from __future__ import annotations

import base64
import hashlib
import xml.etree.ElementTree as ET

from hibali.text import printable

Element = ET.Element
Child = ET.Element | str | bytes | None


def tag(name: str, /, *children: Child, **attributes: str | float | None) -> Element:
    """An element with children in their order; None is left out, `class_` is `class`, and `_` in a name is a dash."""
    made = ET.Element(name)
    for key, value in attributes.items():
        if value is not None:
            text = (
                f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else printable(str(value))
            )
            made.set(key.rstrip("_").replace("_", "-"), text)
    for child in children:
        add(made, child)
    return made


def add(parent: Element, child: Child) -> None:
    """One more child behind the others."""
    if isinstance(child, str | bytes):
        text = printable(child)
        if len(parent):
            parent[-1].tail = (parent[-1].tail or "") + text
        else:
            parent.text = (parent.text or "") + text
    elif child is not None:
        parent.append(child)


def link_to(identifier: str, /, *children: Child, **attributes: str | float | None) -> Element:
    """A link inside the page: there are no others."""
    return tag("a", *children, href=f"#{identifier}", **attributes)


def page_head(title: str, style: str) -> Element:
    """The head of a page of one style: nothing may be fetched, run or sent, and that style is named by its digest."""
    digest = base64.b64encode(hashlib.sha256(style.encode("ascii")).digest()).decode("ascii")
    policy = tag(
        "meta",
        content=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
    )
    policy.set("http-equiv", "Content-Security-Policy")
    sheet = tag("style")
    sheet.text = style
    return tag(
        "head",
        tag("meta", charset="us-ascii"),
        policy,
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        sheet,
    )


def write_page(page: Element) -> bytes:
    """The whole document; letters beyond ASCII are written as references."""
    text: bytes = ET.tostring(page, encoding="us-ascii", method="html")
    return b"<!DOCTYPE html>\n" + text + b"\n"
