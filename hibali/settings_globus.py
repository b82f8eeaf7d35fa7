"""The tables of config.toml about Globus: who we are there, and the collection of a site; what is wrong is noted."""

from __future__ import annotations

from hibali.settings_table import Table
from hibali.settings_values import read_duration
from hibali.sites import GLOBUS_DEADLINE_SECONDS, GlobusClient, GlobusSettings

_UUID = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_SHORTEST_DEADLINE, _LONGEST_DEADLINE = 600.0, 90 * 86400.0
_SECRETS = ("secret_variable", "secret_keyring", "secret_command")


def read_globus_client(table: Table | None) -> GlobusClient | None:
    """The client of the table `globus` at the top, for all sites that name none."""
    if table is None:
        return None
    if not table.has("client_id"):
        table.note("needs client_id")
    found = _read_client(table)
    table.finish()
    return found


def read_globus(table: Table | None, client: GlobusClient | None) -> GlobusSettings | None:
    """The collection of a site, where it has one; `client` is that of the table at the top."""
    if table is None:
        return None
    if not table.has("collection"):
        table.note("needs collection")
    found = GlobusSettings(
        collection=(table.text("collection", _UUID, "a UUID") or "").lower(),
        paths=table.mapping("paths"),
        https=table.flag("https"),
        data_access=table.flag("data_access"),
        deadline_seconds=table.quantity("deadline", read_duration, GLOBUS_DEADLINE_SECONDS),
        client=_read_client(table) or client,
    )
    if not all(part.startswith("/") for pair in found.paths.items() for part in pair):
        table.note("both sides must be absolute paths", "paths")
    if not _SHORTEST_DEADLINE <= found.deadline_seconds <= _LONGEST_DEADLINE:
        table.note("must be from 10m to 90d", "deadline")
    table.finish()
    return found


def _read_client(table: Table) -> GlobusClient | None:
    """A client's id and where its secret comes from; None where there is no id."""
    client_id = table.text("client_id", _UUID, "a UUID")
    found = GlobusClient(
        client_id=(client_id or "").lower(),
        secret_variable=table.text("secret_variable", _VARIABLE, "the name of an environment variable"),
        secret_keyring=table.text("secret_keyring"),
        secret_command=table.words("secret_command", ()),
    )
    given = [key for key in _SECRETS if table.has(key)]
    if len(given) > 1:
        table.note(f"only one of {', '.join(_SECRETS)} can be set")
    if given and not table.has("client_id"):
        table.note("needs client_id beside it: it is that client's secret", given[0])
    return found if client_id else None
