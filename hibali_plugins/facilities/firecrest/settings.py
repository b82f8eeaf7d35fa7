"""Read the table [sites.NAME.firecrest]: the API, the system, and where its tokens come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from hibali.config.schema import Note, flag, inline, setting, table, text
from transfers.stores.bearer.settings import BearerSettings, data_setting, read_url


@table
class FirecrestSettings:
    """One system of a FirecREST v2."""

    url: str = setting(read_url, default="", required=True, doc="the address of the API, version 2")
    system: str = setting(
        text(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", "a system's name"), default="", required=True, doc="the system"
    )
    bearer: BearerSettings = inline(BearerSettings, default=BearerSettings())
    home: str | None = setting(
        text(r"/[^']*", "an absolute path"), default=None, doc="the home folder, if the API does not tell it"
    )
    account: str | None = setting(
        text(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*", "an account"),
        default=None,
        doc="the account that transfers of large files are charged to",
    )
    streamer: bool = setting(
        flag, default=False, doc="allow large files over the streamer of the service, without TLS"
    )
    data: str | None = data_setting()

    def finish(self, present_keys: Mapping[str, Any], note: Note) -> Self:
        """Require a source of tokens."""
        del present_keys
        self.bearer.require_source(note)
        return self
