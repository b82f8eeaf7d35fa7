"""The secret of a confidential client, from where config.toml says; never kept, never shown (S16)."""

from __future__ import annotations

import os

from hibali.credentials_command import credentials_from
from hibali.errors import AccessError
from hibali.hidden import hidden_variable
from hibali.sites import GlobusClient


def secret_of(client: GlobusClient, about: str) -> str:
    """The secret; `about` names the site. Raises `AccessError` with what to type, at once and without a question."""
    if client.secret_variable is not None:
        found = hidden_variable(client.secret_variable)
        if found:
            return os.fsdecode(found)
        raise AccessError(
            "no-secret",
            f"the secret of the Globus client is not in the environment: {client.secret_variable} is not set",
            about=about,
            hint=f"In the crontab or the script, from a file of mode 0600: export {client.secret_variable}=$(cat ~/.globus-secret)",
        )
    if client.secret_keyring is not None:
        return _from_keyring(client.secret_keyring, client.client_id, about)
    return credentials_from(
        client.secret_command,
        read_secret,
        key="secret_command",
        what="secret",
        about=about,
        hint="Run it by hand: it has to print the secret of the Globus client as its first line.",
    )


def read_secret(text: bytes) -> str:
    """The first line; raises ValueError that repeats nothing of the text."""
    line = text.partition(b"\n")[0].strip()
    if not line:
        raise ValueError("its first line is empty")
    if not line.isascii() or not line.decode("ascii").isprintable():
        raise ValueError("its first line is not plain text")
    return line.decode("ascii")


def _from_keyring(service: str, client_id: str, about: str) -> str:
    hint = f"keyring set {service} {client_id}"
    try:
        import keyring

        found = keyring.get_password(service, client_id)
    except Exception as problem:  # noqa: BLE001  # each of its backends, which others write, has errors of its own
        raise AccessError(
            "no-secret",
            f"the keyring cannot be read ({type(problem).__name__})",
            about=about,
            hint=f"Without a desktop, name a secret_variable or a secret_command. See what `{hint.replace(' set ', ' get ')}` says.",
        ) from None
    if not found:
        raise AccessError(
            "no-secret",
            f"the keyring has no entry {service!r} for the Globus client",
            about=about,
            hint=hint,
        )
    return found
