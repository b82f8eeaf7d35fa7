"""Find the credentials and the endpoint of an object store."""

from __future__ import annotations

import ipaddress
import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import quote, urlsplit

from hibali.config.model import S3Settings
from hibali.errors import AccessError, HibaliError, UsageError
from hibali.subprocesses import credentials_from

_KEPT_SECONDS = 1.0  # each of many requests needs them
_EARLY = timedelta(minutes=5)  # fetch new credentials this long before the old ones expire


@dataclass(frozen=True, slots=True)
class Credentials:
    """The keys that sign requests; never printed."""

    access_key: str
    secret_key: str
    token: str | None = None
    expires: datetime | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return "Credentials(...)"


class CredentialSource:
    """The keys of one site, fetched at first use and before they expire; thread-safe."""

    def __init__(self, settings: S3Settings, subject: str) -> None:
        """Store the settings; `subject` names the site in errors."""
        self._settings = settings
        self._subject = subject
        self._lock = threading.Lock()
        self._known: Credentials | None = None
        self._chain: Any = None
        self._expired: Credentials | None = None  # no others were found in place of these
        self._last: tuple[float, Credentials | None] = (-_KEPT_SECONDS, None)  # when they were obtained

    @property
    def renews(self) -> bool:
        """Whether `renew` may find other keys."""
        return bool(self._settings.credentials_command) or self._chain is not None

    def current(self) -> Credentials | None:
        """Return keys valid for some minutes, None for anonymous access. Raise `AccessError`."""
        obtained, credentials = self._last
        if monotonic() - obtained < _KEPT_SECONDS or self._settings.anonymous:
            return credentials
        with self._lock:
            credentials = self._obtain()
            self._last = monotonic(), credentials
            return credentials

    def renew(self, expired: Credentials | None) -> bool:
        """Obtain other keys, because the server says that these have expired; return whether there are others.

        The source is asked once for the same keys, however many threads were rejected.
        """
        if expired is None or expired == self._expired:
            return False
        with self._lock:
            if self._obtain() == expired:
                self._known = self._chain = None
                self._last = -_KEPT_SECONDS, None
                if self._obtain() == expired:
                    self._expired = expired
                    return False
        return True

    def _obtain(self) -> Credentials:
        if self._chain is not None:
            return self._from_chain()
        if self._known is None or _ends_soon(self._known):
            if self._settings.credentials_command:
                self._known = self._from_command()
                return self._known
            self._known = self._from_environment()
            if self._known is None:
                self._chain = self._find_chain()
                return self._from_chain()
        return self._known

    def _from_command(self) -> Credentials:
        """Run the command for AWS process credentials (AWS SDKs reference, "Process credential provider")."""
        return credentials_from(
            self._settings.credentials_command,
            parse_process_credentials,
            key="credentials_command",
            what="credentials",
            subject=self._subject,
            hint="Run the command yourself: it must print AWS process credentials as JSON.",
        )

    def _from_environment(self) -> Credentials | None:
        """Read botocore's first source, the environment, without the cost of loading a botocore session."""
        access, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
        ends = os.environ.get("AWS_CREDENTIAL_EXPIRATION")
        if not (access and secret and is_environment_alone(self._settings)) or ends:
            return None
        token = os.environ.get("AWS_SECURITY_TOKEN") or os.environ.get("AWS_SESSION_TOKEN")
        return Credentials(access, secret, token or None)

    def _find_chain(self) -> Any:
        session = profile_session(self._settings, self._subject)
        resolver = session.get_component("credential_provider")
        for name in ("container-role", "iam-role"):  # metadata services, not configured (S15)
            resolver.remove(name)
        found = _guarded(session.get_credentials, self._subject)
        if found is None:
            raise AccessError(
                "no-credentials",
                "there are no credentials for this object store",
                subject=self._subject,
                hint="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or one of profile, credentials_command and anonymous of the site.",
            )
        return found

    def _from_chain(self) -> Credentials:
        frozen = _guarded(self._chain.get_frozen_credentials, self._subject)
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token)


def parse_process_credentials(text: bytes) -> Credentials:
    """Parse version 1 of the format; raise ValueError without any of the text."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("its output is not JSON") from None
    if not isinstance(record, dict) or record.get("Version") != 1:
        raise ValueError("its output is not Version 1 of that format")
    access, secret = record.get("AccessKeyId"), record.get("SecretAccessKey")
    token, end = record.get("SessionToken"), record.get("Expiration")
    if not (isinstance(access, str) and isinstance(secret, str) and access and secret):
        raise ValueError("AccessKeyId or SecretAccessKey is missing")
    if token is not None and not isinstance(token, str):
        raise ValueError("SessionToken is not a string")
    expires = None
    if end is not None:
        try:
            expires = datetime.fromisoformat(end)
        except (TypeError, ValueError):
            raise ValueError("Expiration is not an ISO 8601 time") from None
        expires = expires if expires.tzinfo else expires.replace(tzinfo=UTC)
        if expires <= datetime.now(UTC):
            raise ValueError("they have expired")
    return Credentials(access, secret, token or None, expires)


def is_environment_alone(settings: S3Settings) -> bool:
    """Return whether no profile and no shared file exists.

    Source: AWS SDKs reference, "Shared config and credentials files".
    """
    if settings.profile or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE"):
        return False
    files = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}
    return not any(Path(os.environ.get(name) or usual).expanduser().exists() for name, usual in files.items())


def profile_session(settings: S3Settings, subject: str) -> Any:
    """Return a botocore session for the site's profile. Raise `AccessError` for an unknown profile."""
    import botocore.session

    def make() -> Any:
        session = botocore.session.Session(profile=settings.profile)
        session.get_scoped_config()
        return session

    return _guarded(make, subject)


def _guarded(read: Callable[[], Any], subject: str) -> Any:
    from botocore.exceptions import BotoCoreError, ProfileNotFound

    try:
        return read()
    except ProfileNotFound:
        raise AccessError(
            "no-such-profile",
            "the AWS configuration files have no such profile",
            subject=subject,
            hint="Correct the site's profile or AWS_PROFILE, or add it to ~/.aws/config.",
        ) from None
    except HibaliError:
        raise
    except BotoCoreError as problem:
        raise AccessError(
            "no-credentials",
            f"the credentials cannot be read ({type(problem).__name__})",
            subject=subject,
            hint="Check ~/.aws/config and ~/.aws/credentials, or log in again.",
        ) from None


def _ends_soon(credentials: Credentials) -> bool:
    return credentials.expires is not None and credentials.expires - _EARLY <= datetime.now(UTC)


_DEFAULT_REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Scheme and host without a final slash, the region for signatures, and an optional CA bundle (PEM)."""

    url: str
    region: str
    secure: bool
    authorities: str | None = None

    def address(self, bucket: str, key: bytes = b"") -> str:
        """Return the URL of a bucket or of an object in it, path style."""
        path = f"{self.url}/{quote(bucket, safe='')}"
        return f"{path}/{quote(key, safe='/~')}" if key else path


def find_endpoint(settings: S3Settings, subject: str) -> Endpoint:
    """Return the site's endpoint; it must be https, or http to this machine (S15). Raise `UsageError`."""
    region, authorities = _configured(settings, subject)
    url = f"https://s3.{region}.amazonaws.com" if settings.endpoint == "aws" else settings.endpoint
    secure = check_endpoint(url, subject)
    if authorities and not Path(authorities).is_file():
        raise UsageError("no-ca-bundle", "the CA bundle (AWS_CA_BUNDLE) is not a file", subject=authorities)
    return Endpoint(url.rstrip("/"), region, secure, authorities)


def _configured(settings: S3Settings, subject: str) -> tuple[str, str | None]:
    """Return the region and the CA bundle."""
    if is_environment_alone(settings):
        region, authorities = os.environ.get("AWS_DEFAULT_REGION"), os.environ.get("AWS_CA_BUNDLE")
    else:
        session = profile_session(settings, subject)
        region, authorities = (session.get_config_variable(name) for name in ("region", "ca_bundle"))
    return settings.region or region or _DEFAULT_REGION, authorities or None


def check_endpoint(url: str, subject: str) -> bool:
    """Return whether the URL is https. Raise `UsageError` for cleartext credentials or more than a host."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if not host or parts.scheme not in {"https", "http"}:
        raise UsageError("bad-endpoint", "the endpoint is not an http(s) URL", subject=subject)
    if parts.username or parts.password or parts.query or parts.fragment or parts.path not in {"", "/"}:
        raise UsageError(
            "bad-endpoint", "the endpoint may contain only scheme, host and port", subject=subject
        )
    if parts.scheme == "http" and not is_loopback(host):
        raise UsageError(
            "insecure-endpoint", "the endpoint must be https, except on this machine", subject=subject
        )
    return parts.scheme == "https"


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine by definition (RFC 6761, RFC 1122)."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
