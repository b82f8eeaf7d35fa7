"""Read the keys of [sites.NAME.scheduler] that slurmrestd needs: its URL, the account, and where its tokens come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from hibali.config.schema import Note, choice, inline, setting, table, text
from transfers.stores.bearer.settings import BearerSettings, read_url

_Header = Literal["X-SLURM-USER-TOKEN", "Authorization"]


@table
class SlurmrestdSettings:
    """A slurmrestd, which may be behind a gateway."""

    url: str = setting(
        read_url,
        default="",
        required=True,
        doc="the address of slurmrestd; if it ends with /slurm/v0.0.N, this version of its API is used",
    )
    user: str | None = setting(
        text(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*", "a user name"),
        default=None,
        doc="the user name in Slurm, if slurmrestd does not take it from the token",
    )
    header: _Header = setting(
        choice(_Header), default="X-SLURM-USER-TOKEN", doc="the header of requests that has the token"
    )
    bearer: BearerSettings = inline(BearerSettings, default=BearerSettings())

    @property
    def secret_variables(self) -> tuple[str, ...]:
        """The environment variables with secrets."""
        return self.bearer.secret_variables

    def finish(self, present_keys: Mapping[str, Any], note: Note) -> Self:
        """Require a source of tokens, other than a login with a code, which `sites login` has for the files of the site."""
        del present_keys
        self.bearer.require_source(note)
        if self.bearer.source == "device":
            note("cannot be used for slurmrestd", "device_url")
        return self
