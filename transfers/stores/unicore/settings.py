"""Read the table [sites.NAME.unicore]: the REST API of a UNICORE/X, and where its tokens come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from hibali.config.model import SITE_NAME
from hibali.config.schema import Note, inline, setting, table, text
from transfers.stores.bearer.settings import BearerSettings, read_url


@table
class UnicoreSettings:
    """The core services of one UNICORE/X."""

    url: str = setting(
        read_url,
        default="",
        required=True,
        doc="the address of the core services: https://.../SITE/rest/core",
    )
    bearer: BearerSettings = inline(BearerSettings, default=BearerSettings())
    data: str | None = setting(
        text(SITE_NAME.pattern, "the name of a site"),
        default=None,
        doc="the site through which files are moved, with the same paths",
    )

    def finish(self, present_keys: Mapping[str, Any], note: Note) -> Self:
        """Require a source of tokens."""
        del present_keys
        if not self.bearer.source:
            note("needs a source of tokens, such as token_command or client_id")
        return self
