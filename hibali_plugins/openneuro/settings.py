"""Read the table [sites.NAME.openneuro]: the dataset, and where the API key comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from hibali.config.schema import Note, flag, inline, setting, table, text
from transfers.stores.bearer.settings import BearerSettings, read_url

URL = "https://openneuro.org"
VARIABLE = "OPENNEURO_API_KEY"  # that of OpenNeuro's own client


@table
class OpenNeuroSettings:
    """The dataset of a site, and the source of its API key."""

    dataset: str = setting(text(r"ds[0-9]{6}", "a dataset, such as ds000001"), doc="the dataset")
    url: str = setting(read_url, default=URL, doc="the address of OpenNeuro")
    bearer: BearerSettings = inline(BearerSettings, default=BearerSettings())
    read_back: bool = setting(flag, default=True, doc="read back what was sent, to verify its checksum")

    def finish(self, present_keys: Mapping[str, Any], note: Note) -> Self:
        """Take the key from the environment unless the settings name another source."""
        del present_keys, note
        if self.bearer.source:
            return self
        return replace(self, bearer=replace(self.bearer, token_variable=VARIABLE))
