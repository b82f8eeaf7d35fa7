"""Check, create and renew GSI proxies, and explain GSI errors."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import math
import os
import re
import shlex
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hibali.config.model import ProxySettings
from hibali.errors import AccessError, HibaliError, NotFoundError
from hibali.files import control_folder, private_folder
from hibali.subprocesses import Finished, hidden_variable, run
from hibali.system_errors import reason_of
from hibali.text import printable

_LONGEST = 2000
_DEBUG = re.compile(r"debug[123]: ")
# kexgssc.c of the GSSAPI key exchange patch, which gsissh, Debian and Fedora share; gss_display_status() of the Globus library.
_FAILED = re.compile(
    r"gss_init_context failed|GSSAPI Error:|GSS name import failed|GSS M(?:aj|in)or Status|globus_(?:gsi|gss)\w*:"
    r"|Unable to negotiate .*Their offer: gss-"
)
_CHAIN = re.compile(r"GSS M(?:aj|in)or Status|globus_\w+: |OpenSSL Error: ")
_NAME = re.compile(r"expected name .*does not match|does not match the authenticated name", re.DOTALL)
_AUTHORITY = re.compile(
    r"trusted CA certificate|Untrusted self-signed|signing polic|unable to get local issuer", re.IGNORECASE
)


def without_debug(said: str) -> str:
    """What ssh said, without its debug messages, each of which may have several lines."""
    return "\n".join(each.strip() for each in _messages(said) if not _DEBUG.match(each)).strip()


def explain_gss(said: str, *, subject: str, by_hand: str) -> AccessError | None:
    """The error where ssh ended in the key exchange of GSSAPI, with the whole error chain; None where it did not.

    `by_hand` is the line that makes ssh tell the same with more words. What went wrong with a mechanism that ssh only tried
    is in debug messages alone, and no error.
    """
    plain = without_debug(said)
    if not _FAILED.search(plain):
        return None
    chain = _last_chain(said)
    told = [*chain, *(line.strip() for line in plain.splitlines() if line.strip() not in chain)]
    words = printable("; ".join(line for line in told if line))[:_LONGEST]
    if _NAME.search(words):
        return AccessError(
            "host-name-differs",
            f"the host's certificate has another name: {words}",
            subject=subject,
            hint="Name the site's host as its certificate does; it may stand for several machines, so ask the site. By hand: "
            + by_hand,
        )
    if _AUTHORITY.search(words):
        return AccessError(
            "authority-unknown",
            f"the certificates cannot be checked: {words}",
            subject=subject,
            hint=f"X509_CERT_DIR names the folder with the certificates of the authorities. By hand: {by_hand}",
        )
    return AccessError(
        "gss-failed",
        f"GSI could not establish a security context: {words}",
        subject=subject,
        hint=f"Check the proxy (grid-proxy-info) and the authorities (X509_CERT_DIR); what ssh says: {by_hand}",
    )


def _messages(said: str) -> list[str]:
    """Split at CR LF, with which ssh ends a message; LF is within one."""
    return said.split("\r\n") if "\r\n" in said else said.splitlines()


def _last_chain(said: str) -> list[str]:
    """The lines of the last message that has an error chain; where messages cannot be told apart, of its last run of lines."""
    found: list[str] = []
    for message in _messages(said):
        if _CHAIN.search(message) and _DEBUG.match(message):
            found = [line.strip() for line in _DEBUG.sub("", message, count=1).splitlines() if line.strip()]
    return found


_SECONDS = re.compile(rb"^\s*(-?[0-9]{1,12})\s*$", re.MULTILINE)
_USUAL_HOURS = 12
_LOOK_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Ready:
    """A proxy that is good for what lies ahead; `made` is its file where hibali made it, None for the user's own."""

    path: Path
    made: Path | None = None


def ready_proxy(settings: ProxySettings, *, subject: str, seconds: float | None = None) -> Ready:
    """A proxy that is valid for so many seconds, by default the site's `least`: the user's own, or one that is made now.

    `subject` names the site or host in errors. Raises `AccessError` with the line to type; nothing is ever asked.
    """
    needed = settings.least_seconds if seconds is None else seconds
    if settings.make != "no":
        path = kept_proxy(settings, needed, subject=subject)
        return Ready(path, path)
    path = users_proxy()
    check_proxy(path, needed, subject=subject, line=line_to_type(settings, needed))
    return Ready(path)


def users_proxy(environment: Mapping[str, str] = os.environ) -> Path:
    """X509_USER_PROXY, else where the tools look for it (grid-proxy-init(1), FILES)."""
    return Path(environment.get("X509_USER_PROXY") or f"/tmp/x509up_u{os.getuid()}")  # noqa: S108  # theirs


def check_proxy(path: Path, seconds: float, *, subject: str, line: str) -> None:
    """Raise `AccessError` where the proxy there is not good for so many seconds; `line` is what to type then."""
    environment = {**os.environ, "X509_USER_PROXY": str(path)}
    asked = _ask(["-exists", "-valid", hours_minutes(seconds)], environment)
    if asked.exit_code == 0:
        return
    problem = _standing(path, subject, line)
    raise problem or explain_proxy(
        _ask(["-timeleft"], environment), path, seconds, subject=subject, line=line
    )


def seconds_left(path: Path) -> int:
    """How long the proxy there is valid still; 0 where it is not."""
    left = read_seconds_left(_ask(["-timeleft"], {**os.environ, "X509_USER_PROXY": str(path)}))
    return max(0, left or 0)


def _ask(words: list[str], environment: Mapping[str, str]) -> Finished:
    try:
        return run(["grid-proxy-info", *words], timeout=_LOOK_SECONDS, environment=environment)
    except NotFoundError as problem:
        raise no_tools(problem) from None


def no_tools(problem: NotFoundError) -> NotFoundError:
    """The same for a program that comes with packages of the Grid Community Toolkit."""
    package = "myproxy" if problem.subject.startswith("myproxy") else "globus-proxy-utils"
    return NotFoundError(
        problem.code,
        problem.message,
        subject=problem.subject,
        hint=f"It is in the package {package} of Debian, Ubuntu and EPEL.",
    )


def _standing(path: Path, subject: str, line: str) -> AccessError | None:
    """What is wrong with the file itself: the tools tell that only in their libraries' words."""
    shown = printable(os.fsencode(path))
    try:
        found = path.stat()
    except OSError as problem:
        if isinstance(problem, PermissionError):
            return AccessError(
                "proxy-mode",
                f"the proxy {shown} may not be read",
                subject=subject,
                hint=f"Make a new one: {line}",
            )
        return AccessError(
            "proxy-missing", f"there is no proxy at {shown}", subject=subject, hint=f"Type: {line}"
        )
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        return AccessError(
            "proxy-mode",
            f"{shown} is not a file of yours, and no proxy",
            subject=subject,
            hint=f"Set X509_USER_PROXY to a place of your own, then: {line}",
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o177:
        return AccessError(
            "proxy-mode",
            f"the proxy {shown} has the mode {mode:04o}, and may have 0600 at most",
            subject=subject,
            hint=f"Type: chmod 600 {shlex.quote(str(path))} (or, where others may have read it, make a new one: {line})",
        )
    return None


def explain_proxy(answer: Finished, path: Path, seconds: float, *, subject: str, line: str) -> AccessError:
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
            subject=subject,
            hint=f"Type: {line}",
        )
    if left <= 0:
        return AccessError(
            "proxy-expired", f"the proxy {shown} has expired", subject=subject, hint=f"Type: {line}"
        )
    return AccessError(
        "proxy-too-short",
        f"the proxy {shown} is valid for {show_time(left)}, and {show_time(seconds)} are needed",
        subject=subject,
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


_MAKING_SECONDS = 120.0
_PREFIX = "proxy-"
_LARGEST = 1 << 20
_TOLERANCE_SECONDS = 120  # whole minutes were asked for, and some seconds have passed
_OTHERS = 0o077

_refused: dict[str, AccessError] = {}  # several logins ask at once, and a wrong passphrase is said once (S7)


def kept_proxy(settings: ProxySettings, seconds: float, *, subject: str) -> Path:
    """The proxy that hibali keeps for these settings, made anew where it is not valid for so many seconds any more.

    It lies in the private folder beside the control sockets, on this machine. Raises `AccessError`.
    """
    folder = private_folder(control_folder() / "proxies")
    path = folder / _name_of(settings)
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.name in _refused:
            raise _refused[path.name]
        if not path.exists() or seconds_left(path) < seconds:
            content = make_proxy(settings, max(seconds, settings.life_seconds), seconds, subject=subject)
            _replace(path, content)
    except AccessError as problem:
        _refused[path.name] = problem
        raise
    finally:
        os.close(lock)
    return path


def _name_of(settings: ProxySettings) -> str:
    """Settings that lead to the same credential share a proxy."""
    source = (settings.make, settings.certificate, settings.key, settings.server, settings.port)
    told = [os.environ.get(name) for name in ("X509_USER_CERT", "X509_USER_KEY", "X509_CERT_DIR", "HOME")]
    return hashlib.sha256(repr((source, settings.account, settings.credential, told)).encode()).hexdigest()[
        :16
    ]


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)


def make_proxy(settings: ProxySettings, life: float, seconds: float, *, subject: str) -> bytes:
    """A new proxy that lasts `life` seconds, or as long as the credential lets it, which must be `seconds` at least.

    By the site's `make`. Raises `AccessError`.
    """
    if settings.make == "myproxy":
        words = _myproxy_words(settings, life)
    else:
        files = _file_options(settings.certificate, settings.key)
        words = ["grid-proxy-init", "-q", "-valid", hours_minutes(life), *files]
    passphrase = read_passphrase(settings, subject=subject)
    if settings.make == "grid-proxy-init" and passphrase is not None:
        words.append("-pwstdin")
    return _make(words, passphrase, seconds, subject=subject)


def derive_proxy(source: Path, life: float, seconds: float, *, subject: str) -> bytes:
    """A proxy of its own key, made from another one; it lasts `life` seconds, or as long as that one. See `make_proxy`."""
    life = min(life, seconds_left(source))
    words = [
        "grid-proxy-init",
        "-q",
        "-valid",
        _whole_minutes(life),
        *_file_options(str(source), str(source)),
    ]
    return _make(words, None, seconds, subject=subject)


def _whole_minutes(seconds: float) -> str:
    """Rounded down: what is made from a proxy cannot outlive it."""
    return hours_minutes(math.floor(seconds / 60) * 60)


def _myproxy_words(settings: ProxySettings, life: float) -> list[str]:
    words = ["myproxy-logon", "-q", "-S", "-s", settings.server or "", "-p", str(settings.port)]
    words += ["-l", settings.account or "", "-t", str(math.ceil(life / 3600))]
    return [*words, "-k", settings.credential] if settings.credential else words


def _file_options(certificate: str | None, key: str | None) -> list[str]:
    pairs = (("-cert", certificate), ("-key", key))
    return [
        word for option, path in pairs if path for word in (option, str(Path(path).expanduser().absolute()))
    ]


def _make(words: Sequence[str], passphrase: bytes | None, seconds: float, *, subject: str) -> bytes:
    """Run what makes a proxy in a folder that nobody else can enter. Without a terminal, nothing can be asked."""
    by_hand = shlex.join(word for word in words if word not in {"-q", "-S", "-pwstdin"})
    _remove_left_over()
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=control_folder()) as folder:
        path = Path(folder) / "proxy"
        option = "-o" if words[0] == "myproxy-logon" else "-out"
        try:
            made = run(
                [*words, option, str(path)],
                stdin=b"" if passphrase is None else passphrase + b"\n",
                timeout=_MAKING_SECONDS,
                environment=_environment(words[0], path),
                umask=_OTHERS,
            )
        except NotFoundError as problem:
            raise no_tools(problem) from None
        if made.exit_code != 0 or not path.exists():
            raise _not_made(words[0], made.stderr + made.stdout, passphrase, subject, by_hand)
        left = seconds_left(path)
        if left + _TOLERANCE_SECONDS < seconds:
            raise AccessError(
                "proxy-too-short",
                f"{words[0]} made a proxy that is valid for {show_time(left)}, and {show_time(seconds)} are needed",
                subject=subject,
                hint=f"The credential itself ends, or the server gives no longer ones; see: {by_hand}",
            )
        content = path.read_bytes()
    if len(content) > _LARGEST:
        raise AccessError(
            "proxy-not-made", "what was made is no proxy: it is far too large", subject=subject, hint=by_hand
        )
    return content


def _remove_left_over() -> None:
    """What a call that was killed left, a proxy perhaps: none takes so long."""
    for path in control_folder().glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > 2 * _MAKING_SECONDS:
                shutil.rmtree(path)


def _environment(program: str, path: Path) -> Mapping[str, str]:
    """As the user set it; but MyProxy would take a proxy of the user's for who asks."""
    return {**os.environ, "X509_USER_PROXY": str(path)} if program == "myproxy-logon" else os.environ


def _not_made(program: str, said: bytes, passphrase: bytes | None, subject: str, by_hand: str) -> AccessError:
    if passphrase is None and b"pass phrase:" in said:
        return AccessError(
            "no-passphrase",
            "the key has a passphrase, and nothing says where hibali finds it",
            subject=subject,
            hint="Set passphrase_command, passphrase_file or passphrase_variable in the site's proxy table.",
        )
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith((b"Use -", b"Syntax:", b"Enter "))]
    words = b"; ".join(told[:3])[:300]
    if passphrase:
        words = words.replace(passphrase, b"...")
    because = printable(words) or "it gave no reason"
    return AccessError(
        "proxy-not-made",
        f"{program} made no proxy: {because}",
        subject=subject,
        hint=f"See what it says by hand: {by_hand}",
    )


def read_passphrase(settings: ProxySettings, *, subject: str) -> bytes | None:
    """The passphrase from where the settings say it is, one line; None where they say nothing. Raises `AccessError`."""
    try:
        found = _find_passphrase(settings)
    except (ValueError, OSError) as problem:
        reason = reason_of(problem) if isinstance(problem, OSError) else str(problem)
        raise _no_passphrase(settings, reason or "it cannot be read", subject) from None
    except HibaliError as problem:
        raise _no_passphrase(settings, problem.message, subject) from None
    if found is None:
        return None
    line = found.partition(b"\n")[0].removesuffix(b"\r")
    if not line:
        raise _no_passphrase(settings, "it is empty", subject)
    return line


def _find_passphrase(settings: ProxySettings) -> bytes | None:
    if settings.passphrase_command:
        finished = run(settings.passphrase_command, timeout=_MAKING_SECONDS, most=1024 * 1024)
        if finished.exit_code != 0:
            raise ValueError(f"it ended with exit code {finished.exit_code}")
        return finished.stdout
    if settings.passphrase_variable is not None:
        value = hidden_variable(settings.passphrase_variable)
        if value is None:
            raise ValueError("it is not set")
        return value
    if settings.passphrase_file is not None:
        return _read_private(Path(settings.passphrase_file).expanduser())
    return None


def _read_private(path: Path) -> bytes:
    """What a file of our own says that nobody else can read; raises ValueError and OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in {os.geteuid(), 0}:
            raise ValueError("it is not a file of yours")
        if found.st_mode & _OTHERS:
            raise ValueError(f"others can read it: chmod 600 {shlex.quote(str(path))}")
        return stream.read(4096)


def _no_passphrase(settings: ProxySettings, because: str, subject: str) -> AccessError:
    if settings.passphrase_command:
        key, value = "passphrase_command", shlex.join(settings.passphrase_command)
    elif settings.passphrase_variable is not None:
        key, value = "passphrase_variable", settings.passphrase_variable
    else:
        key, value = "passphrase_file", settings.passphrase_file or ""
    return AccessError(
        "no-passphrase",
        f"{key} gave no passphrase: {because}",
        subject=subject,
        hint=f"Check {key} in the site's proxy table: {printable(value)}",
    )
