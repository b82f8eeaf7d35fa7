"""Read secrets from the keyring of this account."""

from __future__ import annotations

from hibali.errors import AccessError


def secret_in_keyring(service: str, account: str, *, what: str, instead: str, subject: str) -> str:
    """Return the secret of an account at a service of the keyring.

    Args:
        service: The service, as `keyring set SERVICE ACCOUNT` names it.
        account: The account at the service.
        what: What has the secret, for the message.
        instead: The settings to use on a machine without a desktop.
        subject: The name of the site in errors.

    Raises:
        AccessError: `no-secret`.
    """
    hint = f"keyring set {service} {account}"
    kind = ""
    found: str | None = None
    try:
        import keyring

        found = keyring.get_password(service, account)
    except Exception as problem:  # noqa: BLE001  # its backends, written by others, raise their own errors
        kind = type(problem).__name__
    if kind:
        raise AccessError(
            "no-secret",
            f"the keyring cannot be read ({kind})",
            subject=subject,
            hint=f"Without a desktop, set {instead}. To see the keyring's error: `{hint.replace(' set ', ' get ')}`",
        )
    if not found:
        raise AccessError(
            "no-secret", f"the keyring has no entry {service!r} for {what}", subject=subject, hint=hint
        )
    return found
