"""Read the table [sites.NAME.unicore]: the REST API of a UNICORE/X, and where its tokens come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from hibali.config.schema import Note, inline, setting, table
from transfers.stores.bearer.settings import BearerSettings, data_setting, read_url


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
    data: str | None = data_setting()
    uftp: str = setting(
        read_url,
        default="",
        doc="the address of a server at a UFTP auth server, over which contents of files are moved, without encryption: https://.../rest/auth/NAME",
    )

    def finish(self, present_keys: Mapping[str, Any], note: Note) -> Self:
        """Require a source of tokens."""
        del present_keys
        self.bearer.require_source(note)
        return self
