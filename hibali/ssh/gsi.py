"""Check, create and renew GSI proxies, and explain GSI errors."""

from __future__ import annotations

import contextlib
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
from hibali.files import control_folder, lock_file, private_folder
from hibali.subprocesses import CommandResult, hidden_variable, run
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


def without_debug(stderr: str) -> str:
    """Return ssh's output without debug messages, each of which may have several lines."""
    return "\n".join(each.strip() for each in _messages(stderr) if not _DEBUG.match(each)).strip()


def explain_gss(stderr: str, *, subject: str, manual_command: str) -> AccessError | None:
    """Return the error, with the whole error chain, where ssh failed in the key exchange of GSSAPI; else None.

    `manual_command` is the command that reproduces it with more messages. Problems of a mechanism that ssh only tried are in
    debug messages alone, and are no error.
    """
    plain = without_debug(stderr)
    if not _FAILED.search(plain):
        return None
    chain = _last_error_chain(stderr)
    lines = [*chain, *(line.strip() for line in plain.splitlines() if line.strip() not in chain)]
    errors = printable("; ".join(line for line in lines if line))[:_LONGEST]
    if _NAME.search(errors):
        return AccessError(
            "host-name-differs",
            f"the certificate of the host has another name: {errors}",
            subject=subject,
            hint="Set the site's host to the name in its certificate; the site's documentation has it. To try: "
            + manual_command,
        )
    if _AUTHORITY.search(errors):
        return AccessError(
            "authority-unknown",
            f"the certificates cannot be checked: {errors}",
            subject=subject,
            hint=f"Check that X509_CERT_DIR is the folder with the certificates of the authorities. To try: {manual_command}",
        )
    return AccessError(
        "gss-failed",
        f"GSI could not establish a security context: {errors}",
        subject=subject,
        hint=f"Check the proxy (grid-proxy-info) and the authorities (X509_CERT_DIR). To try: {manual_command}",
    )


def _messages(stderr: str) -> list[str]:
    """Split ssh's messages: they end with CR LF and may contain LF."""
    return stderr.split("\r\n") if "\r\n" in stderr else stderr.splitlines()


def _last_error_chain(stderr: str) -> list[str]:
    """Return the lines of the last message with an error chain, or the last such lines where messages cannot be separated."""
    found: list[str] = []
    for message in _messages(stderr):
        if _CHAIN.search(message) and _DEBUG.match(message):
            found = [line.strip() for line in _DEBUG.sub("", message, count=1).splitlines() if line.strip()]
    return found


_SECONDS = re.compile(rb"^\s*(-?[0-9]{1,12})\s*$", re.MULTILINE)
_USUAL_HOURS = 12
_INFO_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Ready:
    """A valid proxy; `made` is its file where hibali created it, None for the user's own."""

    path: Path
    made: Path | None = None


def ready_proxy(settings: ProxySettings, *, subject: str, seconds: float | None = None) -> Ready:
    """Return a proxy that is valid for `seconds`, by default the site's `least`: the user's own, or a new one.

    `subject` names the site or host in errors. Raises `AccessError` with the command to run; hibali never prompts.
    """
    needed = settings.least_seconds if seconds is None else seconds
    if settings.make != "no":
        path = cached_proxy(settings, needed, subject=subject)
        return Ready(path, path)
    path = users_proxy()
    check_proxy(path, needed, subject=subject, line=manual_proxy_command(settings, needed))
    return Ready(path)


def users_proxy(environment: Mapping[str, str] = os.environ) -> Path:
    """Return X509_USER_PROXY, else the default path of the tools (grid-proxy-init(1), FILES)."""
    return Path(environment.get("X509_USER_PROXY") or f"/tmp/x509up_u{os.getuid()}")  # noqa: S108  # theirs


def check_proxy(path: Path, seconds: float, *, subject: str, line: str) -> None:
    """Raise `AccessError` where the proxy is not valid for `seconds`; `line` is the command to run then."""
    environment = {**os.environ, "X509_USER_PROXY": str(path)}
    checked = _run_proxy_info(["-exists", "-valid", format_hours(seconds)], environment)
    if checked.exit_code == 0:
        return
    problem = _check_file(path, subject, line)
    raise problem or explain_proxy(
        _run_proxy_info(["-timeleft"], environment), path, seconds, subject=subject, line=line
    )


def seconds_left(path: Path) -> int:
    """Return how many seconds the proxy is still valid; 0 where it is not."""
    left = read_seconds_left(_run_proxy_info(["-timeleft"], {**os.environ, "X509_USER_PROXY": str(path)}))
    return max(0, left or 0)


def _run_proxy_info(argv: list[str], environment: Mapping[str, str]) -> CommandResult:
    try:
        return run(["grid-proxy-info", *argv], timeout=_INFO_SECONDS, environment=environment)
    except NotFoundError as problem:
        raise explain_missing_tools(problem) from None


def explain_missing_tools(problem: NotFoundError) -> NotFoundError:
    """Explain a missing program of the Grid Community Toolkit."""
    package = "myproxy" if problem.subject.startswith("myproxy") else "globus-proxy-utils"
    return NotFoundError(
        problem.code,
        problem.message,
        subject=problem.subject,
        hint=f"It is in the package {package} of Debian, Ubuntu and EPEL.",
    )


def _check_file(path: Path, subject: str, line: str) -> AccessError | None:
    """Check the proxy's file: the tools report its problems only as errors of their libraries."""
    shown = printable(os.fsencode(path))
    try:
        found = path.stat()
    except OSError as problem:
        if isinstance(problem, PermissionError):
            return AccessError(
                "proxy-mode",
                f"no permission to read the proxy {shown}",
                subject=subject,
                hint=f"Create a new one: {line}",
            )
        return AccessError(
            "proxy-missing", f"the proxy {shown} does not exist", subject=subject, hint=f"Run: {line}"
        )
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        return AccessError(
            "proxy-mode",
            f"{shown} is not a file that belongs to you",
            subject=subject,
            hint=f"Set X509_USER_PROXY to a file of your own. Then run: {line}",
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o177:
        return AccessError(
            "proxy-mode",
            f"the proxy {shown} has the mode {mode:04o}, but at most 0600 is allowed",
            subject=subject,
            hint=f"Run: chmod 600 {shlex.quote(str(path))} (or, if others may have read it, create a new one: {line})",
        )
    return None


def explain_proxy(
    finished: CommandResult, path: Path, seconds: float, *, subject: str, line: str
) -> AccessError:
    """Return the error for the answer of `grid-proxy-info -timeleft` about an unusable proxy; pure.

    For an expired proxy it prints -1, with status 0; its standard error may not be UTF-8.
    """
    left = read_seconds_left(finished)
    shown = printable(os.fsencode(path))
    if left is None:
        stderr = next((text for text in finished.stderr.splitlines() if text.strip()), b"").strip()[:300]
        return AccessError(
            "proxy-unreadable",
            f"{shown} cannot be read as a proxy: {printable(stderr) or 'no reason was given'}",
            subject=subject,
            hint=f"Run: {line}",
        )
    if left <= 0:
        return AccessError(
            "proxy-expired", f"the proxy {shown} has expired", subject=subject, hint=f"Run: {line}"
        )
    return AccessError(
        "proxy-too-short",
        f"the proxy {shown} is valid for only {format_time_left(left)}, but {format_time_left(seconds)} are needed",
        subject=subject,
        hint=f"Run: {line}",
    )


def read_seconds_left(finished: CommandResult) -> int | None:
    """Parse the seconds that `grid-proxy-info -timeleft` prints, less than 1 for an expired proxy; None for other output; pure."""
    found = _SECONDS.findall(finished.stdout) if finished.exit_code == 0 else []
    return int(found[-1]) if found else None


def format_hours(seconds: float) -> str:
    """Format `H:M` for the tools, rounded up, never 0:00, which means no limit to grid-proxy-init."""
    minutes = max(1, math.ceil(seconds / 60))
    return f"{minutes // 60}:{minutes % 60:02}"


def format_time_left(seconds: float) -> str:
    """Format seconds for users."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(int(seconds) // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def manual_proxy_command(settings: ProxySettings, seconds: float) -> str:
    """Return the command that creates a proxy valid for `seconds` and not much longer."""
    hours = max(_USUAL_HOURS, math.ceil(seconds / 3600))
    if settings.server is not None:
        account = ["-l", settings.account] if settings.account else []
        port = [] if settings.port == 7512 else ["-p", str(settings.port)]
        return shlex.join(["myproxy-logon", "-s", settings.server, *port, *account, "-t", str(hours)])
    files = [
        argument
        for option, path in (("-cert", settings.certificate), ("-key", settings.key))
        if path is not None
        for argument in (option, str(Path(path).expanduser()))
    ]
    return shlex.join(["grid-proxy-init", "-valid", f"{hours}:00", *files])


_MAKING_SECONDS = 120.0
_PREFIX = "proxy-"
_LARGEST = 1 << 20
_TOLERANCE_SECONDS = 120  # requested in whole minutes, and some seconds have passed
_OTHERS = 0o077

_refused: dict[
    str, AccessError
] = {}  # several logins need it at once, and a wrong passphrase is tried once (S7)


def cached_proxy(settings: ProxySettings, seconds: float, *, subject: str) -> Path:
    """Return the proxy that hibali keeps for these settings, renewed where it is not valid for `seconds`.

    It is stored in the private folder of the control sockets, on this machine. Raises `AccessError`.
    """
    folder = private_folder(control_folder() / "proxies")
    path = folder / _name_of(settings)
    with lock_file(path.with_suffix(".lock")):
        if path.name in _refused:
            raise _refused[path.name]
        try:
            if not path.exists() or seconds_left(path) < seconds:
                content = make_proxy(settings, max(seconds, settings.life_seconds), seconds, subject=subject)
                _replace(path, content)
        except AccessError as problem:
            _refused[path.name] = problem
            raise
    return path


def _name_of(settings: ProxySettings) -> str:
    """Return the file name of a proxy; settings with the same credential share it."""
    source = (settings.make, settings.certificate, settings.key, settings.server, settings.port)
    variables = [
        os.environ.get(name) for name in ("X509_USER_CERT", "X509_USER_KEY", "X509_CERT_DIR", "HOME")
    ]
    return hashlib.sha256(
        repr((source, settings.account, settings.credential, variables)).encode()
    ).hexdigest()[:16]


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
    """Create a proxy that lasts `life` seconds, or as long as the credential allows, but at least `seconds`.

    It uses the site's `make`. Raises `AccessError`.
    """
    if settings.make == "myproxy":
        argv = _myproxy_argv(settings, life)
    else:
        files = _file_options(settings.certificate, settings.key)
        argv = ["grid-proxy-init", "-q", "-valid", format_hours(life), *files]
    passphrase = read_passphrase(settings, subject=subject)
    if settings.make == "grid-proxy-init" and passphrase is not None:
        argv.append("-pwstdin")
    return _make(argv, passphrase, seconds, subject=subject)


def derive_proxy(source: Path, life: float, seconds: float, *, subject: str) -> bytes:
    """Derive a proxy with a new key from another one; it lasts `life` seconds, or as long as that one. See `make_proxy`."""
    life = min(life, seconds_left(source))
    argv = [
        "grid-proxy-init",
        "-q",
        "-valid",
        _whole_minutes(life),
        *_file_options(str(source), str(source)),
    ]
    return _make(argv, None, seconds, subject=subject)


def _whole_minutes(seconds: float) -> str:
    """Round down: a derived proxy cannot outlive its source."""
    return format_hours(math.floor(seconds / 60) * 60)


def _myproxy_argv(settings: ProxySettings, life: float) -> list[str]:
    argv = ["myproxy-logon", "-q", "-S", "-s", settings.server or "", "-p", str(settings.port)]
    argv += ["-l", settings.account or "", "-t", str(math.ceil(life / 3600))]
    return [*argv, "-k", settings.credential] if settings.credential else argv


def _file_options(certificate: str | None, key: str | None) -> list[str]:
    pairs = (("-cert", certificate), ("-key", key))
    return [
        argument
        for option, path in pairs
        if path
        for argument in (option, str(Path(path).expanduser().absolute()))
    ]


def _make(argv: Sequence[str], passphrase: bytes | None, seconds: float, *, subject: str) -> bytes:
    """Run the command that creates a proxy in a private folder, without a terminal, so that it cannot prompt."""
    manual_command = shlex.join(argument for argument in argv if argument not in {"-q", "-S", "-pwstdin"})
    _remove_left_over()
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=control_folder()) as folder:
        path = Path(folder) / "proxy"
        option = "-o" if argv[0] == "myproxy-logon" else "-out"
        try:
            made = run(
                [*argv, option, str(path)],
                stdin=b"" if passphrase is None else passphrase + b"\n",
                timeout=_MAKING_SECONDS,
                environment=_environment(argv[0], path),
                umask=_OTHERS,
            )
        except NotFoundError as problem:
            raise explain_missing_tools(problem) from None
        if made.exit_code != 0 or not path.exists():
            raise _not_made(argv[0], made.stderr + made.stdout, passphrase, subject, manual_command)
        left = seconds_left(path)
        if left + _TOLERANCE_SECONDS < seconds:
            raise AccessError(
                "proxy-too-short",
                f"{argv[0]} made a proxy that is valid for only {format_time_left(left)}, but {format_time_left(seconds)} are needed",
                subject=subject,
                hint=f"The credential expires earlier, or the server limits the lifetime. To check: {manual_command}",
            )
        content = path.read_bytes()
    if len(content) > _LARGEST:
        raise AccessError(
            "proxy-not-made",
            "the created file is too large to be a proxy",
            subject=subject,
            hint=manual_command,
        )
    return content


def _remove_left_over() -> None:
    """Remove old temporary folders, perhaps with a proxy, of calls that were killed."""
    for path in control_folder().glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > 2 * _MAKING_SECONDS:
                shutil.rmtree(path)


def _environment(program: str, path: Path) -> Mapping[str, str]:
    """Return the user's environment; without the user's proxy, with which MyProxy would authenticate."""
    return {**os.environ, "X509_USER_PROXY": str(path)} if program == "myproxy-logon" else os.environ


def _not_made(
    program: str, stderr: bytes, passphrase: bytes | None, subject: str, manual_command: str
) -> AccessError:
    if passphrase is None and b"pass phrase:" in stderr:
        return AccessError(
            "no-passphrase",
            "the key has a passphrase, but no source of it is configured",
            subject=subject,
            hint="Set passphrase_command, passphrase_file or passphrase_variable in the site's proxy table.",
        )
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    messages = [line for line in lines if not line.startswith((b"Use -", b"Syntax:", b"Enter "))]
    text = b"; ".join(messages[:3])[:300]
    if passphrase:
        text = text.replace(passphrase, b"...")
    because = printable(text) or "it gave no reason"
    return AccessError(
        "proxy-not-made",
        f"{program} created no proxy: {because}",
        subject=subject,
        hint=f"To try: {manual_command}",
    )


def read_passphrase(settings: ProxySettings, *, subject: str) -> bytes | None:
    """Read the passphrase as configured, one line; None where none is configured. Raises `AccessError`."""
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
            raise ValueError(f"its exit code is {finished.exit_code}")
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
    """Read a file that only this account can read; raises ValueError and OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in {os.geteuid(), 0}:
            raise ValueError("it is not a file that belongs to you")
        if found.st_mode & _OTHERS:
            raise ValueError(f"other accounts can read it: chmod 600 {shlex.quote(str(path))}")
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
