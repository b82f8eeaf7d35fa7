"""Read the table [sites.NAME.ebrains]: a bucket or a dataset, and where its token comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from hibali.config.schema import Note, flag, inline, setting, size, table, text
from transfers.stores.bearer.settings import BearerSettings, read_url

URL = "https://data-proxy.ebrains.eu/api"
TOKEN_URL = "https://iam.ebrains.eu/auth/realms/hbp/protocol/openid-connect/token"  # noqa: S105  # an address
_UUID = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"


@table
class EbrainsSettings:
    """The bucket or dataset of a site, and at most one source of tokens; public data need none."""

    bucket: str | None = setting(
        text(r"[A-Za-z0-9][A-Za-z0-9._-]*", "a bucket's name"), default=None, doc="the bucket"
    )
    dataset: str | None = setting(
        text(_UUID, "the UUID of a dataset"), default=None, doc="a dataset instead, which is read-only"
    )
    url: str = setting(read_url, default=URL, doc="the address of the data proxy")
    bearer: BearerSettings = inline(BearerSettings, default=BearerSettings())
    multipart: int = setting(size("5M"), default=1 << 30, doc="uploads of more bytes go in parts")
    read_back: bool = setting(flag, default=True, doc="read back what was written, to verify its checksum")

    @property
    def resource(self) -> str:
        """The path of the bucket or dataset in the API; without special characters."""
        return f"buckets/{self.bucket}" if self.bucket is not None else f"datasets/{self.dataset}"

    @property
    def login(self) -> BearerSettings:
        """The source of tokens, at the OIDC service of EBRAINS unless another one is named."""
        return replace(self.bearer, token_url=self.bearer.token_url or TOKEN_URL)

    @property
    def has_login(self) -> bool:
        """Whether there is a source of tokens."""
        return self.bearer.source != ""

    def finish(self, present_keys: Mapping[str, Any], note: Note) -> Self:
        """Require one of bucket and dataset."""
        if ("bucket" in present_keys) + ("dataset" in present_keys) != 1:
            note("needs either bucket or dataset")
        return replace(self, dataset=self.dataset.lower()) if self.dataset is not None else self
