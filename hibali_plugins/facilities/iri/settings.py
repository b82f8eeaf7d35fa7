"""Read the table [sites.NAME.iri]: the API, the resources of the site, and where its tokens come from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Self

from hibali.config.schema import Note, inline, setting, table, text
from transfers.stores.bearer.settings import BearerSettings, data_setting, read_url

_RESOURCE = text(r"[A-Za-z0-9_:][A-Za-z0-9 _.:/-]*", "the id or name of a resource")
_ACCOUNT = text(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*", "an account")
_VERSION = re.compile(r"/v([12])\Z")


@table
class IriSettings:
    """One system of a facility."""

    url: str = setting(read_url, default="", required=True, doc="the address of the API: https://.../api/v1")
    system: str | None = setting(_RESOURCE, default=None, doc="the resource that runs jobs, by id or name")
    filesystem: str | None = setting(
        _RESOURCE, default=None, doc="the resource that handles files, by id or name"
    )
    bearer: BearerSettings = inline(BearerSettings, default=BearerSettings())
    home: str | None = setting(
        text(r"/[^']*", "an absolute path"), default=None, doc="the home folder, if the API does not tell it"
    )
    account: str | None = setting(
        _ACCOUNT, default=None, doc="the account of jobs that join and split large files"
    )
    queue: str | None = setting(_ACCOUNT, default=None, doc="their queue")
    data: str | None = data_setting()

    @property
    def version(self) -> int:
        """The version of the API, by which requests differ."""
        found = _VERSION.search(self.url)
        return int(found[1]) if found else 0

    def finish(self, present_keys: Mapping[str, Any], note: Note) -> Self:
        """Require a known version, and a source of tokens."""
        del present_keys
        if self.url and not self.version:
            note("ends with the version of the API, /v1 or /v2: https://api.example.org/api/v1", "url")
        self.bearer.require_source(note)
        return self
