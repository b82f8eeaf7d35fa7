"""Making proxies by command, for cron and for jobs: private from their creation, and never longer than needed."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import math
import os
import shlex
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hibali.errors import AccessError, HibaliError, NotFoundError
from hibali.folders import control_folder, private_folder
from hibali.hidden import hidden_variable
from hibali.proxy import hours_minutes, no_tools, seconds_left, show_time
from hibali.shell import run
from hibali.sites import ProxySettings
from hibali.system_errors import reason_of
from hibali.text import printable

_PATIENCE_SECONDS = 120.0
_PREFIX = "proxy-"
_LARGEST = 1 << 20
_TOLERANCE_SECONDS = 120  # whole minutes were asked for, and some seconds have passed
_OTHERS = 0o077

_refused: dict[str, AccessError] = {}  # several logins ask at once, and a wrong passphrase is said once (S7)


def kept_proxy(settings: ProxySettings, seconds: float, *, about: str) -> Path:
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
            content = make_proxy(settings, max(seconds, settings.life_seconds), seconds, about=about)
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


def make_proxy(settings: ProxySettings, life: float, seconds: float, *, about: str) -> bytes:
    """A new proxy that lasts `life` seconds, or as long as the credential lets it, which must be `seconds` at least.

    By the site's `make`. Raises `AccessError`.
    """
    if settings.make == "myproxy":
        words = _myproxy_words(settings, life)
    else:
        files = _file_options(settings.certificate, settings.key)
        words = ["grid-proxy-init", "-q", "-valid", hours_minutes(life), *files]
    passphrase = read_passphrase(settings, about=about)
    if settings.make == "grid-proxy-init" and passphrase is not None:
        words.append("-pwstdin")
    return _make(words, passphrase, seconds, about=about)


def derive_proxy(source: Path, life: float, seconds: float, *, about: str) -> bytes:
    """A proxy of its own key, made from another one; it lasts `life` seconds, or as long as that one. See `make_proxy`."""
    life = min(life, seconds_left(source))
    words = [
        "grid-proxy-init",
        "-q",
        "-valid",
        _whole_minutes(life),
        *_file_options(str(source), str(source)),
    ]
    return _make(words, None, seconds, about=about)


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


def _make(words: Sequence[str], passphrase: bytes | None, seconds: float, *, about: str) -> bytes:
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
                timeout=_PATIENCE_SECONDS,
                environment=_environment(words[0], path),
                umask=_OTHERS,
            )
        except NotFoundError as problem:
            raise no_tools(problem) from None
        if made.exit_code != 0 or not path.exists():
            raise _not_made(words[0], made.stderr + made.stdout, passphrase, about, by_hand)
        left = seconds_left(path)
        if left + _TOLERANCE_SECONDS < seconds:
            raise AccessError(
                "proxy-too-short",
                f"{words[0]} made a proxy that is valid for {show_time(left)}, and {show_time(seconds)} are needed",
                about=about,
                hint=f"The credential itself ends, or the server gives no longer ones; see: {by_hand}",
            )
        content = path.read_bytes()
    if len(content) > _LARGEST:
        raise AccessError(
            "proxy-not-made", "what was made is no proxy: it is far too large", about=about, hint=by_hand
        )
    return content


def _remove_left_over() -> None:
    """What a call that was killed left, a proxy perhaps: none takes so long."""
    for path in control_folder().glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > 2 * _PATIENCE_SECONDS:
                shutil.rmtree(path)


def _environment(program: str, path: Path) -> Mapping[str, str]:
    """As the user set it; but MyProxy would take a proxy of the user's for who asks."""
    return {**os.environ, "X509_USER_PROXY": str(path)} if program == "myproxy-logon" else os.environ


def _not_made(program: str, said: bytes, passphrase: bytes | None, about: str, by_hand: str) -> AccessError:
    if passphrase is None and b"pass phrase:" in said:
        return AccessError(
            "no-passphrase",
            "the key has a passphrase, and nothing says where hibali finds it",
            about=about,
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
        about=about,
        hint=f"See what it says by hand: {by_hand}",
    )


def read_passphrase(settings: ProxySettings, *, about: str) -> bytes | None:
    """The passphrase from where the settings say it is, one line; None where they say nothing. Raises `AccessError`."""
    try:
        found = _find_passphrase(settings)
    except (ValueError, OSError) as problem:
        reason = reason_of(problem) if isinstance(problem, OSError) else str(problem)
        raise _no_passphrase(settings, reason or "it cannot be read", about) from None
    except HibaliError as problem:
        raise _no_passphrase(settings, problem.message, about) from None
    if found is None:
        return None
    line = found.partition(b"\n")[0].removesuffix(b"\r")
    if not line:
        raise _no_passphrase(settings, "it is empty", about)
    return line


def _find_passphrase(settings: ProxySettings) -> bytes | None:
    if settings.passphrase_command:
        finished = run(settings.passphrase_command, timeout=_PATIENCE_SECONDS, most=1024 * 1024)
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


def _no_passphrase(settings: ProxySettings, because: str, about: str) -> AccessError:
    if settings.passphrase_command:
        key, value = "passphrase_command", shlex.join(settings.passphrase_command)
    elif settings.passphrase_variable is not None:
        key, value = "passphrase_variable", settings.passphrase_variable
    else:
        key, value = "passphrase_file", settings.passphrase_file or ""
    return AccessError(
        "no-passphrase",
        f"{key} gave no passphrase: {because}",
        about=about,
        hint=f"Check {key} in the site's proxy table: {printable(value)}",
    )
