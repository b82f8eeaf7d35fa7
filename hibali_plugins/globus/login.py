"""Log in to Globus as a native app without a local browser, and log out."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import globus_sdk
from globus_sdk.gare import GlobusAuthorizationParameters, to_gare
from globus_sdk.scopes import GCSCollectionScopes, TransferScopes

from hibali.config.model import Site
from hibali.errors import AccessError
from hibali.files import private_folder, state_folder
from hibali_plugins.globus.clients import (
    TRANSFER,
    client_of,
    login_client,
    merged_scopes,
    native_client,
    open_access,
    open_tokens,
)
from hibali_plugins.globus.errors import translated_errors
from hibali_plugins.globus.requests import list_a_little
from transfers.stores.login_protocol import LoginResult, Prompts

_ATTEMPTS = 3  # login, the collection's consent, an institution's further requirement
_SERVICE = "Globus"
_Change = Literal["logged in", "same", "client", "logged out"]


@dataclass(slots=True)
class _Login:
    """What was done so far, and facts of the collection."""

    change: _Change
    facts: dict[str, str | int | bool] = field(default_factory=dict)


def log_in(site: Site, prompts: Prompts) -> LoginResult:
    """Log in if needed, with the consents that the site's collection requires, and check that it responds.

    A confidential client needs no login, and is only checked. Raises `AccessError` and connection errors.
    """
    found = _Login("client" if client_of(site).confidential else "same")
    nothing = GlobusAuthorizationParameters()
    if found.change == "same" and not _has_token(site, TRANSFER):
        _run_flow(site, nothing, "Log in to Globus", prompts)
        found.change = "logged in"
    for attempts_left in reversed(range(_ATTEMPTS)):
        requirements_and_reason = _check_access(site, found, last=attempts_left == 0)
        if requirements_and_reason is None:
            break
        _run_flow(site, *requirements_and_reason, prompts)
        found.change = "logged in"
    collection = site.globus.collection if site.globus is not None and site.globus.https else None
    if collection is not None and found.change == "same" and not _has_token(site, collection):
        _run_flow(site, nothing, "Allow hibali to read the files of this collection over HTTPS", prompts)
        found.change = "logged in"
    return LoginResult(_SERVICE, found.change, found.facts)


def log_out(site: Site) -> LoginResult:
    """Revoke the tokens of the site's client, then remove them; keep them if Globus cannot be reached.

    This also logs out other sites with the same client. Raises `TryLaterError`.
    """
    client = client_of(site)
    tokens = open_tokens(client.client_id)
    try:
        known = tokens.get_token_data_by_resource_server()
        if not known:
            return LoginResult(_SERVICE, "same")
        login = login_client(client, site)
        try:
            with translated_errors(site):
                for server, each in known.items():
                    for token in (each.access_token, each.refresh_token):
                        if token is not None:
                            login.oauth2_revoke_token(token)
                    tokens.remove_token_data(server)
        finally:
            login.close()
    finally:
        tokens.close()
    return LoginResult(
        _SERVICE, "logged out", note=f"Other sites with the client of {site.name} are logged out, too."
    )


def _has_token(site: Site, server: str) -> bool:
    tokens = open_tokens(client_of(site).client_id)
    try:
        known = tokens.get_token_data(server)
        return known is not None and known.refresh_token is not None
    finally:
        tokens.close()


def _check_access(
    site: Site, found: _Login, *, last: bool
) -> tuple[GlobusAuthorizationParameters, str] | None:
    """Return None if the collection responds, or else the login's parameters and reason; raise if `last`."""
    with open_access([site]) as access, translated_errors(site):
        try:
            list_a_little(access.transfer(), site, found.facts)
        except globus_sdk.AuthAPIError:
            if client_of(site).confidential or last:
                raise
            return GlobusAuthorizationParameters(), "The login has expired. Log in to Globus again"
        except globus_sdk.GlobusAPIError as problem:
            requirements = to_gare(problem)
            if requirements is None or client_of(site).confidential or last:
                raise
            wanted = requirements.authorization_parameters
            consent = requirements.code == "ConsentRequired"
            if consent:
                _remember_data_access(site)
            return wanted, (
                "Allow hibali to access the data of this collection"
                if consent
                else "This collection requires another login"
            )
    return None


def _run_flow(site: Site, wanted: GlobusAuthorizationParameters, why: str, prompts: Prompts) -> None:
    """Run one login: show a URL, read the code, store the tokens. Raise `AccessError` for a rejected code."""
    client = client_of(site)
    native = native_client(client)
    try:
        scopes = merged_scopes(_scopes_of(site), wanted.required_scopes or [])
        label = f"hibali on {socket.gethostname()}"
        native.oauth2_start_flow(scopes, refresh_tokens=True, prefill_named_grant=label)
        url = native.oauth2_get_authorize_url(**_session_parameters(wanted))
        prompts.show(
            f"{why}: open this URL in a browser, on any machine, and type the code that it shows.\n\n{url}\n"
        )
        code = prompts.ask("Code").strip()
        if not code:
            raise _no_code(site, "no code was entered")
        with translated_errors(site):
            try:
                response = native.oauth2_exchange_code_for_tokens(code)
            except globus_sdk.AuthAPIError as problem:
                if problem.http_status in {400, 401}:
                    raise _no_code(site, "Globus rejected this code") from None
                raise
        tokens = open_tokens(client.client_id)
        try:
            tokens.store_token_response(response)
        finally:
            tokens.close()
    finally:
        native.close()


def _scopes_of(site: Site) -> list[str]:
    assert site.globus is not None
    of_collection = GCSCollectionScopes(site.globus.collection)
    transfer = TransferScopes.all
    if site.globus.data_access or _note_of_data_access(site).exists():
        transfer = transfer.with_dependency(of_collection.data_access.with_optional(True))
    return [str(transfer), *([str(of_collection.https)] if site.globus.https else [])]


def _remember_data_access(site: Site) -> None:
    """Record that the collection requires a data consent, so that the next login requests it."""
    note = _note_of_data_access(site)
    private_folder(note.parent)
    note.touch(mode=0o600)


def _note_of_data_access(site: Site) -> Path:
    assert site.globus is not None
    return private_folder(state_folder() / "globus") / "data-access" / site.globus.collection


def _session_parameters(wanted: GlobusAuthorizationParameters) -> dict[str, Any]:
    names = (
        "session_message",
        "session_required_identities",
        "session_required_mfa",
        "session_required_policies",
        "session_required_single_domain",
        "prompt",  # "none" is for non-interactive pages
    )
    parameters = {name: getattr(wanted, name) for name in names}
    return {name: value for name, value in parameters.items() if value is not None and value != "none"}


def _no_code(site: Site, message: str) -> AccessError:
    return AccessError(
        "login-failed",
        message,
        subject=site.name,
        hint=f"A code can be used only once and expires soon. To get a new one: hibali sites login {site.name}",
    )
