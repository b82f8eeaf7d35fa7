"""Render HTML pages from Jinja2 templates that escape every value (S17)."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from hibali import __version__
from hibali.text import printable, without_controls

_TEMPLATES = Path(__file__).with_name("templates")


def render_page(template: str, styles: Sequence[str], **values: Any) -> bytes:
    """Render one page that fetches, runs and sends nothing.

    Args:
        template: The name of a file in `templates`.
        styles: Names of style sheets there; the page's security policy allows only these, by their digest.
        values: What the template shows. Text may be hostile: it is made printable and escaped.

    Returns:
        The document in ASCII; other characters are written as references.
    """
    style = style_sheet(*styles)
    digest = base64.b64encode(hashlib.sha256(style.encode("ascii")).digest()).decode("ascii")
    page = environment().get_template(template)
    text = page.render(style=Markup(style), style_digest=digest, version=__version__, **values)  # noqa: S704  # our own file
    return text.encode("ascii", "xmlcharrefreplace")


def clock(at: float) -> str:
    """Format seconds since the epoch as a date and time, UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"


def style_sheet(*names: str) -> str:
    """Return the text of style sheets in `templates`, one after the other."""
    return "".join((_TEMPLATES / name).read_text("ascii") for name in names)


def plain_line(text: str) -> Markup:
    """Return a line of output for templates: without control characters, but with its backslashes."""
    return escape(without_controls(text))


@functools.cache  # it keeps compiled templates
def environment(*folders: Path) -> Environment:
    """Return the templates of these folders and of `templates`; they escape every value, and show no control characters."""
    return Environment(
        loader=FileSystemLoader([*folders, _TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable_value,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _printable_value(value: Any) -> Any:
    """Show a value as templates write it, before it is escaped: coordinates with two digits, no control characters."""
    if isinstance(value, Markup):
        return value  # made by a macro, from values that were escaped there
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return printable(value) if isinstance(value, str | bytes) else value
