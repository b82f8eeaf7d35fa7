"""The one host that an object store's requests, and the credentials, go to."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from hibali.errors import UsageError
from hibali.sites import S3Settings
from transfers.stores.s3_credentials import is_environment_alone, profile_session

_DEFAULT_REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Scheme and host without a slash at the end, the region that signatures name, and a CA bundle's PEM file or none."""

    url: str
    region: str
    secure: bool
    authorities: str | None = None

    def address(self, bucket: str, key: bytes = b"") -> str:
        """The URL of a bucket or of an object in it, path style."""
        path = f"{self.url}/{quote(bucket, safe='')}"
        return f"{path}/{quote(key, safe='/~')}" if key else path


def find_endpoint(settings: S3Settings, about: str) -> Endpoint:
    """The site's endpoint, checked: https, or http to this very machine (S15). Raises `UsageError`."""
    region, authorities = _configured(settings, about)
    url = f"https://s3.{region}.amazonaws.com" if settings.endpoint == "aws" else settings.endpoint
    secure = check_endpoint(url, about)
    if authorities and not Path(authorities).is_file():
        raise UsageError("no-ca-bundle", "the CA bundle (AWS_CA_BUNDLE) is no file", about=authorities)
    return Endpoint(url.rstrip("/"), region, secure, authorities)


def _configured(settings: S3Settings, about: str) -> tuple[str, str | None]:
    """The region and the CA bundle."""
    if is_environment_alone(settings):
        region, authorities = os.environ.get("AWS_DEFAULT_REGION"), os.environ.get("AWS_CA_BUNDLE")
    else:
        session = profile_session(settings, about)
        region, authorities = (session.get_config_variable(name) for name in ("region", "ca_bundle"))
    return settings.region or region or _DEFAULT_REGION, authorities or None


def check_endpoint(url: str, about: str) -> bool:
    """Whether it is https; raises `UsageError` where credentials would travel in clear or the URL holds more than a host."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if not host or parts.scheme not in {"https", "http"}:
        raise UsageError("bad-endpoint", "the endpoint is not an http(s) URL", about=about)
    if parts.username or parts.password or parts.query or parts.fragment or parts.path not in {"", "/"}:
        raise UsageError("bad-endpoint", "the endpoint may hold only scheme, host and port", about=about)
    if parts.scheme == "http" and not is_loopback(host):
        raise UsageError(
            "insecure-endpoint", "the endpoint must be https, except on this machine", about=about
        )
    return parts.scheme == "https"


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine by definition (RFC 6761, RFC 1122)."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
