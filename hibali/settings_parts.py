"""The tables of one site, each as its dataclass; what is wrong is noted, not raised."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from hibali.settings_table import Table
from hibali.settings_values import read_duration, read_size
from hibali.sites import (
    GridftpSettings,
    Limits,
    ProxySettings,
    Purge,
    Reached,
    S3Settings,
    SshSettings,
    Tier,
)

_HOST = r"[A-Za-z0-9_][A-Za-z0-9_.@:%-]*"
_PLAIN_HOST = r"[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?"
# A job's shell puts it together: nothing in it can mean more than itself.
_PLAIN_PARTS = r"(?:/(?!\.\.?(?:/|$))[A-Za-z0-9_.+@%=,-]+)"
_TIER_PATH = rf"(?:\$[A-Za-z_][A-Za-z0-9_]*{_PLAIN_PARTS}*|{_PLAIN_PARTS}+)"
_TIER_NAME = r"[a-z][a-z0-9_-]*"
_TIER_MEANING = "an absolute path or $NAME/x of plain letters"
_DIRECTIVE = r"#[A-Z][A-Z_]* [ -~]+"
LONGEST_PERSIST = 24 * 3600.0  # a control master that outlives its user is bounded (S7)
SHORTEST_LEASE, LONGEST_LEASE = (
    10,
    3600,
)  # a holder needs time to renew it; others wait for that of a dead one
URL_PROTOCOLS_BUILT = ("https", "http", "davs", "dav")
URL_PROTOCOLS = (*URL_PROTOCOLS_BUILT, "sftp", "ftp", "smb", "webhdfs", "gs", "gcs", "abfs", "abfss", "swift")


def read_ssh(site: Table, proxy: ProxySettings) -> SshSettings | None:
    """How to log in, and with which proxy; None, noted, where the table is missing."""
    table = site.table("ssh")
    if table is None:
        site.note("a site of kind ssh needs a table ssh with host")
        return None
    if not table.has("host"):
        table.note("needs host")
    command = table.words("command", ("ssh",))
    is_gsissh = PurePosixPath(command[0]).name == "gsissh"
    found = SshSettings(
        host=table.text("host", _HOST, "a host") or "",
        data_host=table.text("data_host", _HOST, "a host"),
        command=command,
        auth=table.choice("auth", ("ssh", "gsi"), "gsi" if is_gsissh else "ssh"),
        transport=table.choice("transport", ("auto", "agent", "sftp"), "auto"),
        python=table.text("python", r"[A-Za-z0-9_./][A-Za-z0-9_./+-]*", "a program's name or path")
        or "python3",
        logins=table.whole("logins", 1, most=64),
        channels=table.whole("channels", 8, most=64),
        persist_seconds=int(table.quantity("persist", _read_persist, 600.0)),
        read_back=table.flag("read_back", default=True),
        proxy=proxy,
    )
    if found.persist_seconds > LONGEST_PERSIST:
        table.note("must be at most 1d", "persist")
    table.finish()
    return found


def read_reached(table: Table) -> Reached:
    """How one other site reaches this one."""
    found = Reached(
        host=table.text("host", _HOST, "a host"),
        port=table.whole("port", 0, most=65535) or None,
        command=table.words("command", ("ssh",)),
    )
    table.finish()
    return found


def _read_persist(text: str) -> float:
    return 0.0 if text == "no" else read_duration(text)


def read_s3(site: Table) -> S3Settings | None:
    """Where the object store answers; None, noted, where the table is missing."""
    table = site.table("s3")
    if table is None:
        site.note("a site of kind s3 needs a table s3 with endpoint")
        return None
    if not table.has("endpoint"):
        table.note("needs endpoint")
    endpoint = table.text("endpoint") or "aws"
    problem = endpoint_problem(endpoint)
    if problem:
        table.note(problem, "endpoint")
    found = S3Settings(
        endpoint=endpoint,
        bucket=table.text("bucket", r"[A-Za-z0-9][A-Za-z0-9._-]*", "a bucket's name"),
        prefix=(table.text("prefix", r"(?!/).*", "a key without a leading slash") or "").rstrip("/"),
        region=table.text("region", r"[A-Za-z0-9-]+", "a region"),
        profile=table.text("profile"),
        anonymous=table.flag("anonymous"),
        credentials_command=table.words("credentials_command", ()),
    )
    if (found.profile is not None) + found.anonymous + bool(found.credentials_command) > 1:
        table.note("only one of profile, anonymous and credentials_command can be set")
    table.finish()
    return found


def endpoint_problem(endpoint: str) -> str | None:
    """Why this cannot be an S3 endpoint: `aws`, or https, http to this machine alone, without a login in it (S15)."""
    if endpoint == "aws":
        return None
    try:
        parts = urlsplit(endpoint)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is not a URL"
    plain = parts.scheme == "http"
    checks = [
        (parts.scheme in {"https", "http"} and host, "must be aws, or a URL that begins with https://"),
        ("@" not in parts.netloc, "must not hold a login: name a profile or a credentials_command"),
        (not parts.query and not parts.fragment, "must not hold a query or a fragment"),
        (not plain or _loopback(host or ""), "must begin with https:// except on this machine itself"),
    ]
    return next((problem for passed, problem in checks if not passed), None)


def _loopback(host: str) -> bool:
    return host in {"localhost", "::1"} or re.fullmatch(r"127(\.[0-9]{1,3}){3}", host) is not None


def read_url(site: Table) -> str | None:
    """A URL of a protocol on the allow-list."""
    url = site.text("url")
    if url is None:
        if not site.has("url"):
            site.note("a site of kind url needs url")
        return None
    parts = urlsplit(url)
    if parts.scheme not in URL_PROTOCOLS:
        site.note(f"must begin with one of {', '.join(URL_PROTOCOLS)}", "url")
    if parts.password is not None:
        site.note("must not hold a password", "url")
    if parts.query or parts.fragment:
        site.note("must not hold a query or a fragment", "url")
    if parts.scheme in {"davs", "dav"}:
        problem = _webdav_problem(url)
        if problem:
            site.note(problem, "url")
    return url


def _webdav_problem(url: str) -> str | None:
    """Why this cannot be a WebDAV server's URL: a login goes with each request, in clear only on this machine (S15)."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is not a URL"
    checks = [
        (host, "must name a host"),
        ("@" not in parts.netloc, "must not hold a login: name a credentials_command"),
        (
            parts.scheme == "davs" or _loopback(host or ""),
            "must begin with davs:// except on this machine itself",
        ),
    ]
    return next((problem for passed, problem in checks if not passed), None)


def read_gridftp(table: Table | None) -> GridftpSettings | None:
    """The GridFTP server, where there is one."""
    if table is None:
        return None
    if not table.has("url"):
        table.note("needs url")
    url = rf"gsiftp://{_PLAIN_HOST}|sshftp://([A-Za-z0-9_][A-Za-z0-9_.-]*@)?{_PLAIN_HOST}"
    found = GridftpSettings(
        url=(table.text("url", rf"({url})/?", "gsiftp://HOST:PORT or sshftp://USER@HOST:PORT") or "").rstrip(
            "/"
        ),
        paths=table.mapping("paths"),
        use=table.choice("use", ("auto", "never"), "auto"),
        least=int(table.quantity("least", read_size, 0)),
        connections=table.whole("connections", 2, most=64),
    )
    if not all(part.startswith("/") for pair in found.paths.items() for part in pair):
        table.note("both sides must be absolute paths", "paths")
    table.finish()
    return found


def read_limits(table: Table | None) -> Limits:
    """The budgets of politeness."""
    if table is None:
        return Limits()
    found = Limits(
        queued_jobs=table.whole("queued_jobs", 100),
        array_size=table.whole("array_size", 1000),
        poll_seconds=table.quantity("poll", read_duration, 60.0),
        login_interval_seconds=table.quantity("login_interval", read_duration, 10.0),
        bandwidth=int(table.quantity("bandwidth", read_size, 0)),
        lease_seconds=int(table.quantity("lease", read_duration, 120.0)),
        reconnect_seconds=table.quantity("reconnect", read_duration, 600.0),
        settling_seconds=table.quantity("settling", read_duration, 180.0),
    )
    if not SHORTEST_LEASE <= found.lease_seconds <= LONGEST_LEASE:
        table.note("must be from 10s to 1h", "lease")
    table.finish()
    return found


def read_root(table: Table, key: str, roots: dict[str, str]) -> str | None:
    """A key that names a root."""
    name = table.text(key)
    if name is not None and name not in roots:
        table.note(f"{name!r} is not one of the roots ({', '.join(sorted(roots)) or 'there are none'})", key)
    return name


def read_tiers(table: Table | None) -> dict[str, Tier]:
    """The storage that jobs find on their nodes: `NAME = "PATH"`, or a table with `path` and `directive`."""
    tiers: dict[str, Tier] = {}
    for name in table.content if table is not None else ():
        assert table is not None
        if not re.fullmatch(_TIER_NAME, name):
            table.note("a tier's name is lower-case letters, digits, - and _", name)
        if isinstance(table.content[name], dict):
            below = table.table(name)
            assert below is not None
            if not below.has("path"):
                below.note("needs path")
            path = below.text("path", _TIER_PATH, _TIER_MEANING)
            directive = below.text("directive", _DIRECTIVE, "one line such as #BB create_persistent ...")
            tiers[name] = Tier(path or "", directive)
            below.finish()
        else:
            tiers[name] = Tier(table.text(name, _TIER_PATH, _TIER_MEANING) or "")
    return tiers


def read_fast(site: Table, tiers: dict[str, Tier]) -> str | None:
    """The tier that runs use unless told otherwise."""
    name = site.text("fast")
    if name is not None and name not in tiers:
        site.note(
            f"{name!r} is not one of the tiers ({', '.join(sorted(tiers)) or 'there are none'})", "fast"
        )
    return name


def read_purge(table: Table | None, roots: dict[str, str]) -> Purge | None:
    """What the site deletes by itself, where it says so."""
    if table is None:
        return None
    for key in ("root", "days"):
        if not table.has(key):
            table.note(f"needs {key}")
    found = Purge(
        root=read_root(table, "root", roots) or "",
        days=table.whole("days", 0),
        by=table.choice("by", ("mtime", "atime", "ctime"), "mtime"),
        refresh_times=table.flag("refresh_times"),
    )
    table.finish()
    return found
