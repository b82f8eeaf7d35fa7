"""Report each request to a server and each program that is started, without secrets (S16).

All REST clients end in one of two HTTP libraries: hibali's own and those of botocore and the Globus SDK in urllib3, those of
fsspec in aiohttp. Both are observed where every request passes, so that no client needs lines of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from hibali import subprocesses
from hibali.subprocesses import without_secrets

_MOST = 2000  # characters of a line
# Parameters whose values say what is requested. All others are hidden: signatures and tokens have many names.
_SHOWN = frozenset(
    {
        "delete",
        "delimiter",
        "encoding-type",
        "format",
        "fields",
        "filter",
        "limit",
        "list-type",
        "marker",
        "max-keys",
        "num",
        "offset",
        "op",
        "page",
        "partNumber",
        "path",
        "per_page",
        "prefix",
        "recursive",
        "size",
        "start",
        "start-after",
        "start-offset",
        "uploadId",
        "uploads",
        "versioning",
    }
)
# Options whose values may contain a secret: receivers of notices, and what prints their secret.
_NEVER_SHOWN = frozenset({"--notify", "--command", "--webhook", "--secret-command"})
_URL = re.compile(r"(?i)[a-z][a-z0-9+.-]*://\S*[^\s'\"),:;]")  # without what a message has after it
_sinks: list[Callable[[str], None]] = []  # at most one: a process has one log
_observed: set[str] = set()


def log_requests(write: Callable[[str], None]) -> None:
    """Call `write` with a line for each request and program of this process, from any thread."""
    _sinks[:] = [write]
    subprocesses.watch_programs(lambda argv: log_line("program", command_text(argv)))
    _observe_urllib3()


def is_logging() -> bool:
    """Return whether requests are reported."""
    return bool(_sinks)


def log_line(kind: str, text: str) -> None:
    """Report one line about a request, with its secrets hidden."""
    pass_line(f"{kind:<8} {text}")


def pass_line(line: str) -> None:
    """Report a line, which may be of another process of hibali, with its secrets hidden."""
    for write in _sinks:
        with contextlib.suppress(Exception):  # a line that cannot be written never ends a command
            line = without_secrets(line)
            write(line if len(line) <= _MOST else line[:_MOST] + "...")


def command_text(argv: Sequence[str | bytes]) -> str:
    """Return a command line as a shell would read it, without what its URLs and the receivers of notices may contain."""
    return shlex.join(map(_shown_word, map(os.fsdecode, argv), ["", *map(os.fsdecode, argv)]))


def _shown_word(word: str, before: str) -> str:
    """Return a word of a command line, which comes after another one, without its login."""
    if before in _NEVER_SHOWN:
        return "***"
    name, equals, _ = word.partition("=")
    if equals and name in _NEVER_SHOWN:
        return f"{name}=***"
    login = typed_login(word)
    return shown_urls(word.replace(f"{login}@", "", 1) if login else word)


def typed_login(word: str) -> str:
    """Return the login in a typed URL: its password may have any character, so it ends at the last `@`."""
    return word.partition("://")[2].rpartition("@")[0]


def shown_urls(text: str) -> str:
    """Return a text with `shown_url` of each URL in it."""
    return _URL.sub(lambda found: shown_url(found[0]), text)


def shown_url(url: str) -> str:
    """Return a URL without its login and fragment, and without all values of its query that may be secret."""
    try:
        parts = urlsplit(url)
    except ValueError:  # what was typed, or what a server sent
        return "***"
    origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.scheme else ""
    query = "&".join(map(_shown_parameter, parts.query.split("&"))) if parts.query else ""
    return origin + parts.path + (f"?{query}" if query else "")


def _shown_parameter(parameter: str) -> str:
    name, equals, _ = parameter.partition("=")
    if name in _SHOWN:
        return parameter
    return f"{name}=***" if equals else "***"  # a token may be all of a query


def log_request(method: str, url: str, result: int | BaseException, began: float) -> None:
    """Report a request, which got this status or error; `began` is by `time.monotonic`."""
    outcome = str(result) if isinstance(result, int) else f"failed ({type(result).__name__})"
    log_line("request", f"{method} {shown_url(url)} {outcome} {time.monotonic() - began:.3f} s")


def _observe_urllib3() -> None:
    """Report the requests of urllib3; the time of a request ends where the content of its answer begins."""
    if "urllib3" in _observed:
        return
    _observed.add("urllib3")
    from urllib3 import HTTPConnectionPool  # start-up: only where requests are reported

    send: Any = HTTPConnectionPool.urlopen

    def urlopen(pool: HTTPConnectionPool, method: str, url: str, *arguments: Any, **named: Any) -> Any:
        began = time.monotonic()
        port = f":{pool.port}" if pool.port else ""
        whole = f"{pool.scheme}://{pool.host}{port}{url}" if url.startswith("/") else url
        try:
            response = send(pool, method, url, *arguments, **named)
        except BaseException as problem:
            log_request(method, whole, problem, began)
            raise
        log_request(method, whole, response.status, began)
        return response

    HTTPConnectionPool.urlopen = urlopen  # type: ignore[method-assign,assignment]


def observe_aiohttp() -> None:
    """Report the requests of aiohttp, if requests are reported; its clients are made by libraries."""
    if not _sinks or "aiohttp" in _observed:
        return
    _observed.add("aiohttp")
    try:
        import aiohttp  # start-up: only where requests are reported
    except ImportError:  # an optional package
        return
    make: Any = aiohttp.ClientSession.__init__

    def begin(session: Any, *arguments: Any, trace_configs: Any = None, **named: Any) -> None:
        make(session, *arguments, trace_configs=[*(trace_configs or ()), _trace(aiohttp)], **named)

    aiohttp.ClientSession.__init__ = begin  # type: ignore[method-assign,assignment]


def _trace(aiohttp: Any) -> Any:
    async def start(session: Any, context: Any, parameters: Any) -> None:
        del session, parameters
        context.began = time.monotonic()

    async def end(session: Any, context: Any, parameters: Any) -> None:
        del session
        found = getattr(parameters, "response", None)
        result = parameters.exception if found is None else found.status
        log_request(parameters.method, str(parameters.url), result, context.began)

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(start)
    trace.on_request_end.append(end)
    trace.on_request_exception.append(end)
    return trace
