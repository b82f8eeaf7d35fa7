"""Name what a URL or a bucket shows, so that two locations that show the same files have the same identity."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes, urlsplit

from transfers.agent.identity import Identity, identity_of

AMAZON = "https://s3.amazonaws.com"  # represents all of Amazon's endpoints
_WEB_PORTS = {"http": 80, "https": 443}
_OWN_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def identity_of_keys(service: str, path: bytes) -> Identity:
    """Return the identity of a prefix or path at a service whose name is the same for all users."""
    return identity_of(service, [("path", b"/" + path.strip(b"/"), b"")])


def identity_of_url(url: str, path: bytes) -> Identity:
    """Return the identity of a path below a URL, for web servers and WebDAV servers."""
    parts = urlsplit(url)
    base = unquote_to_bytes(parts.path).strip(b"/")
    scheme = "https" if parts.scheme in {"https", "davs"} else "http"
    port = parts.port or _WEB_PORTS[scheme]
    # HTTP and HTTPS usually show the same files
    shown = "" if port == _WEB_PORTS[scheme] else f":{port}"
    return identity_of_keys(f"web {host_name(parts.hostname)}{shown}", base + b"/" + path)


def identity_of_bucket(endpoint: str, bucket: str, key: bytes) -> Identity:
    """Return the identity of a key prefix; Amazon's bucket names are unique in all regions."""
    parts = urlsplit(endpoint)
    host = host_name(parts.hostname)
    if host.endswith((".amazonaws.com", ".amazonaws.com.cn")):
        host = "amazonaws.com.cn" if host.endswith(".cn") else "amazonaws.com"
    port = parts.port or _WEB_PORTS.get(parts.scheme, 0)
    return identity_of_keys(f"s3 {host}:{port}/{bucket}", key)


def host_name(host: str | None) -> str:
    """Return a host name in the form that is compared."""
    name = (host or "").lower().rstrip(".")
    return "localhost" if name in _OWN_NAMES else name
