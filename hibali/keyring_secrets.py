"""Read secrets from the system's keyring, and from the output of commands."""

from __future__ import annotations

from hibali.errors import AccessError


def keyring_secret(service: str, account: str, *, owner: str, subject: str, otherwise: str) -> str:
    """Return the secret of an entry of the keyring.

    Args:
        service: The name of the entry.
        account: The account in it.
        owner: What the secret belongs to, in errors.
        subject: The site, in errors.
        otherwise: What to set where there is no keyring.

    Raises:
        AccessError: The keyring cannot be read, or has no such entry.
    """
    command = f"keyring set {service} {account}"
    failure = ""
    found: str | None = None
    try:
        import keyring  # start-up: only sites with a keyring need it

        found = keyring.get_password(service, account)
    except Exception as problem:  # noqa: BLE001  # its backends, written by others, raise their own errors
        failure = type(problem).__name__
    if failure:
        raise AccessError(
            "no-secret",
            f"the keyring cannot be read ({failure})",
            subject=subject,
            hint=f"Without a desktop, set {otherwise}. To see the keyring's error: `{command.replace(' set ', ' get ', 1)}`",
        )
    if not found:
        raise AccessError(
            "no-secret", f"the keyring has no entry {service!r} for {owner}", subject=subject, hint=command
        )
    return found


def first_line(text: bytes) -> str:
    """Return the first line of a command's output; raise ValueError without any of the text."""
    line = text.partition(b"\n")[0].strip()
    if not line:
        raise ValueError("the first line of its output is empty")
    if not line.isascii() or not line.decode("ascii").isprintable():
        raise ValueError("the first line of its output is not plain text")
    return line.decode("ascii")
