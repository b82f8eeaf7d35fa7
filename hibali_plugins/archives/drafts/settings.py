"""Read the table [sites.NAME.zenodo]: a draft, and where the token for it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from hibali.config.schema import Note, inline, setting, table, text
from transfers.stores.bearer.settings import BearerSettings, read_url

URL = "https://zenodo.org"


@table
class DraftSettings:
    """A draft of one's own."""

    draft: str = setting(
        text(r"[0-9]{1,12}", "the number of a draft"), doc="the number of the draft, as in its address"
    )
    url: str = setting(read_url, default=URL, doc="the address of the archive")
    bearer: BearerSettings = inline(BearerSettings, default=BearerSettings())

    def finish(self, present_keys: Mapping[str, Any], note: Note) -> Self:
        """Require a source of tokens."""
        del present_keys
        self.bearer.require_source(note)
        return self
