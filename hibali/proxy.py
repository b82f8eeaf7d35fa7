"""The proxy that GSI logs in with: looked at before any login, so that what is wrong with it is said in words."""

from __future__ import annotations

import math
import os
import re
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hibali.errors import AccessError, NotFoundError
from hibali.shell import Finished, run
from hibali.sites import ProxySettings
from hibali.text import printable

_SECONDS = re.compile(rb"^\s*(-?[0-9]{1,12})\s*$", re.MULTILINE)
_USUAL_HOURS = 12
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Ready:
    """A proxy that is good for what lies ahead; `made` is its file where hibali made it, None for the user's own."""

    path: Path
    made: Path | None = None


def ready_proxy(settings: ProxySettings, *, about: str, seconds: float | None = None) -> Ready:
    """A proxy that is valid for so many seconds, by default the site's `least`: the user's own, or one that is made now.

    `about` names the site or host in errors. Raises `AccessError` with the line to type; nothing is ever asked.
    """
    needed = settings.least_seconds if seconds is None else seconds
    if settings.make != "no":
        from hibali.proxy_making import kept_proxy

        path = kept_proxy(settings, needed, about=about)
        return Ready(path, path)
    path = users_proxy()
    check_proxy(path, needed, about=about, line=line_to_type(settings, needed))
    return Ready(path)


def users_proxy(environment: Mapping[str, str] = os.environ) -> Path:
    """X509_USER_PROXY, else where the tools look for it (grid-proxy-init(1), FILES)."""
    return Path(environment.get("X509_USER_PROXY") or f"/tmp/x509up_u{os.getuid()}")  # noqa: S108  # theirs


def check_proxy(path: Path, seconds: float, *, about: str, line: str) -> None:
    """Raise `AccessError` where the proxy there is not good for so many seconds; `line` is what to type then."""
    environment = {**os.environ, "X509_USER_PROXY": str(path)}
    asked = _ask(["-exists", "-valid", hours_minutes(seconds)], environment)
    if asked.exit_code == 0:
        return
    problem = _standing(path, about, line)
    raise problem or explain_proxy(_ask(["-timeleft"], environment), path, seconds, about=about, line=line)


def seconds_left(path: Path) -> int:
    """How long the proxy there is valid still; 0 where it is not."""
    left = read_seconds_left(_ask(["-timeleft"], {**os.environ, "X509_USER_PROXY": str(path)}))
    return max(0, left or 0)


def _ask(words: list[str], environment: Mapping[str, str]) -> Finished:
    try:
        return run(["grid-proxy-info", *words], timeout=_PATIENCE_SECONDS, environment=environment)
    except NotFoundError as problem:
        raise no_tools(problem) from None


def no_tools(problem: NotFoundError) -> NotFoundError:
    """The same for a program that comes with packages of the Grid Community Toolkit."""
    package = "myproxy" if problem.about.startswith("myproxy") else "globus-proxy-utils"
    return NotFoundError(
        problem.code,
        problem.message,
        about=problem.about,
        hint=f"It is in the package {package} of Debian, Ubuntu and EPEL.",
    )


def _standing(path: Path, about: str, line: str) -> AccessError | None:
    """What is wrong with the file itself: the tools tell that only in their libraries' words."""
    shown = printable(os.fsencode(path))
    try:
        found = path.stat()
    except OSError as problem:
        if isinstance(problem, PermissionError):
            return AccessError(
                "proxy-mode",
                f"the proxy {shown} may not be read",
                about=about,
                hint=f"Make a new one: {line}",
            )
        return AccessError(
            "proxy-missing", f"there is no proxy at {shown}", about=about, hint=f"Type: {line}"
        )
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        return AccessError(
            "proxy-mode",
            f"{shown} is not a file of yours, and no proxy",
            about=about,
            hint=f"Set X509_USER_PROXY to a place of your own, then: {line}",
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o177:
        return AccessError(
            "proxy-mode",
            f"the proxy {shown} has the mode {mode:04o}, and may have 0600 at most",
            about=about,
            hint=f"Type: chmod 600 {shlex.quote(str(path))} (or, where others may have read it, make a new one: {line})",
        )
    return None


def explain_proxy(answer: Finished, path: Path, seconds: float, *, about: str, line: str) -> AccessError:
    """What `grid-proxy-info -timeleft` means by its answer for a proxy that does not do; pure.

    Of an expired proxy it prints -1, with status 0; what it says on standard error need not be UTF-8.
    """
    left = read_seconds_left(answer)
    shown = printable(os.fsencode(path))
    if left is None:
        said = next((text for text in answer.stderr.splitlines() if text.strip()), b"").strip()[:300]
        return AccessError(
            "proxy-unreadable",
            f"{shown} cannot be read as a proxy: {printable(said) or 'no reason was given'}",
            about=about,
            hint=f"Type: {line}",
        )
    if left <= 0:
        return AccessError(
            "proxy-expired", f"the proxy {shown} has expired", about=about, hint=f"Type: {line}"
        )
    return AccessError(
        "proxy-too-short",
        f"the proxy {shown} is valid for {show_time(left)}, and {show_time(seconds)} are needed",
        about=about,
        hint=f"Type: {line}",
    )


def read_seconds_left(answer: Finished) -> int | None:
    """The seconds that `grid-proxy-info -timeleft` tells, less than 1 for an expired proxy; None where it tells none; pure."""
    found = _SECONDS.findall(answer.stdout) if answer.exit_code == 0 else []
    return int(found[-1]) if found else None


def hours_minutes(seconds: float) -> str:
    """`H:M` as the tools read it, rounded up, never 0:00: that is no limit at all for grid-proxy-init."""
    minutes = max(1, math.ceil(seconds / 60))
    return f"{minutes // 60}:{minutes % 60:02}"


def show_time(seconds: float) -> str:
    """For people."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(int(seconds) // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def line_to_type(settings: ProxySettings, seconds: float) -> str:
    """What makes the user a proxy that is good for so many seconds and not much more."""
    hours = max(_USUAL_HOURS, math.ceil(seconds / 3600))
    if settings.server is not None:
        account = ["-l", settings.account] if settings.account else []
        port = [] if settings.port == 7512 else ["-p", str(settings.port)]
        return shlex.join(["myproxy-logon", "-s", settings.server, *port, *account, "-t", str(hours)])
    files = [
        word
        for option, path in (("-cert", settings.certificate), ("-key", settings.key))
        if path is not None
        for word in (option, str(Path(path).expanduser()))
    ]
    return shlex.join(["grid-proxy-init", "-valid", f"{hours}:00", *files])
