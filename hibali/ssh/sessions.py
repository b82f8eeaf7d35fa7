"""Log in once per site with an OpenSSH master that every later connection shares (S7)."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import ipaddress
import os
import re
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TypeVar

from hibali import subprocesses
from hibali.config.model import Limits, SshSettings
from hibali.errors import AccessError, HibaliError, TryLaterError, UsageError
from hibali.events import Listener, Noted, ignore
from hibali.files import control_folder, lock_file, read_regular
from hibali.rate_limits import Refusals, note_use
from hibali.retry import pause, with_retries
from hibali.ssh import connect_helper
from hibali.ssh.certificates import SiteCertificate
from hibali.ssh.explain import SESSION_LIMIT, ended_session, explain_ssh
from hibali.ssh.gsi import ready_proxy
from hibali.ssh.login_pace import LoginPace
from hibali.ssh_options import SshOptions, query_options, with_jump_hosts
from hibali.workers import worker_number

# What ssh prints after a login without a proxy, at LogLevel VERBOSE (sshconnect2.c, ssh_userauth2).
_AUTHENTICATED = re.compile(rb"^Authenticated to .* \(\[([^\]\s]+)\]:([0-9]+)\)", re.MULTILINE)
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}

# Settings of ssh_config(5) with which a connection needs more than an address, with their unused values.
_OTHER_WAYS = ("proxycommand", "proxyjump", "bindaddress", "bindinterface")

Address = tuple[str, int]


def has_several(options: SshOptions) -> bool:
    """Return whether the host's name has several addresses from which ssh would choose.

    False where ssh connects through another host, or in a way that an address alone
    does not describe: then the machine at the end is unknown here.
    """
    if any(map(options.first, _OTHER_WAYS)) or options.first("canonicalizehostname", "false") != "false":
        return False
    name, port = options.first("hostname"), options.first("port", "22")
    family = _FAMILIES.get(options.first("addressfamily"), socket.AF_UNSPEC)
    return bool(name) and len(resolve(name, port, family)) > 1


def resolve(name: str, port: str, family: int = socket.AF_UNSPEC) -> set[str]:
    """Return the addresses of a name; empty where it has none, which ssh will report."""
    try:
        found = socket.getaddrinfo(name, port, family, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return set()
    return {str(address[0]) for *_, address in found}


def address_of_login(stderr: bytes) -> Address | None:
    """Return the address that ssh reports for its login; None through a proxy. The text of a banner before that is ignored."""
    logins = _AUTHENTICATED.findall(stderr)
    return _address(*logins[-1]) if logins else None


def write_address(path: Path, address: Address | None) -> None:
    """Store it for further logins, beside the login's socket; None removes it."""
    path.unlink(missing_ok=True)
    if address is not None:
        path.touch(mode=0o600, exist_ok=False)
        path.write_text(f"{address[0]} {address[1]}\n", "ascii")


def read_address(path: Path) -> Address | None:
    """Read the stored address."""
    with contextlib.suppress(OSError):
        fields = read_regular(path).split()
        return _address(*fields) if len(fields) == 2 else None
    return None


def _address(address: bytes, port: bytes) -> Address | None:
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(address.decode("ascii"))), int(port)
    return None


def options_for_address(address: Address) -> list[str]:
    """Return the ssh options that connect to this address and keep everything configured for the name.

    `HostName` would break a `Match host`, a certificate's principals and a Kerberos ticket, which are for the name.
    """
    argv = [sys.executable, "-I", "-S", connect_helper.__file__, address[0], str(address[1])]
    command = " ".join(shlex.quote(argument) for argument in argv).replace("%", "%%")
    return ["-o", f"ProxyCommand={command}", "-o", "ProxyUseFdpass=yes"]


_PROMPT_LOCK = threading.Lock()
# ssh then continues without its socket and would wait for ever: the login of a killed call created one first.
_SOCKET_EXISTS = b"already exists, disabling multiplexing"
_WORDS_SECONDS = 30.0
LOGIN_SECONDS = 120.0  # time for a user to enter a second factor

_FAST_CIPHER = (
    "aes128-gcm@openssh.com"  # three times as fast as ssh's default, where both CPUs have AES instructions
)

# What the user's configuration must not add to hibali's commands (S7).
_SAFE_OPTIONS = (
    "RequestTTY=no",
    "RemoteCommand=none",
    "PermitLocalCommand=no",
    "ForwardAgent=no",
    "ForwardX11=no",
    "GSSAPIDelegateCredentials=no",
    "ClearAllForwardings=yes",
    "EscapeChar=none",
    "LogLevel=ERROR",
)


# A path that loses packets ends the connection after a minute (S23).
_DEADLINES = ("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4", "-o", "ConnectTimeout=30")


def worker_login(logins: int) -> int | None:
    """Return which of `logins` logins to one host this worker shares, without prompts; None in any other process."""
    worker = worker_number()
    return None if worker is None else worker % logins


class Login:
    """The login to one host: after `ensure`, `argv` returns the arguments that run a command there."""

    def __init__(
        self,
        settings: SshSettings,
        limits: Limits,
        *,
        host: str | None = None,
        on_event: Listener = ignore,
        number: int = 0,
        may_prompt: bool = True,
        attempts: int = 3,
        since: float | None = None,
    ) -> None:
        """`number` counts several logins to one host; only the first one may prompt the user, or be retried.

        `attempts` limits the attempts of the first one. The others use the address of the first one, and no further login is attempted after a refusal.
        A first one clears refusals of further logins from before `since` (seconds since the epoch; by default now): the
        call's own further logins may have been refused before the first one begins.
        """
        self._settings = settings
        self._limits = limits
        self.host = host or settings.host
        self._on_event = on_event
        self._attempts = attempts
        self._since = time.time() if since is None else since
        self.logins = 0
        self._name = login_name(settings, self.host)
        self._pace = LoginPace(self._name, limits.login_interval_seconds)
        # a reconnect is counted by its caller; further logins have their own limit
        self._refusals = login_refusals(settings, self.host) if attempts > 1 and not number else None
        self._number = number
        self._prompts = may_prompt and not number
        self._refused: HibaliError | None = None
        self._answered = False
        self._made_proxy: Path | None = None

    @property
    def _socket(self) -> Path:
        return control_folder() / (f"{self._name}-{self._number}" if self._number else self._name)

    def _shared_path(self, name: str) -> Path:
        """Return the path of a file that all logins to this host share."""
        return control_folder() / f"{self._name}.{name}"

    def _may_prompt(self) -> bool:
        return subprocesses.has_terminal() and self._prompts

    @property
    def shared(self) -> bool:
        """Whether channels share a master connection; where masters are forbidden, every channel is a login."""
        return self._settings.persist_seconds > 0

    @property
    def key(self) -> str:
        """What tells this login from those to other hosts, and with other credentials."""
        return f"{self._name}\n{self._settings.auth}\n{self._settings.proxy!r}"

    @property
    def is_first(self) -> bool:
        """Whether it is not one of the further logins to a host."""
        return not self._number

    @property
    def asks(self) -> bool:
        """Whether a channel may prompt the user, so that ssh needs the terminal: without it, ssh would answer with nothing."""
        return not self.shared and self._may_prompt()

    @property
    def prompt_seconds(self) -> float:
        """How long a channel may wait for the user's answers before it starts."""
        return LOGIN_SECONDS if self.asks else 0.0

    def ensure(self) -> None:
        """Log in unless there is a login already. Raises `AccessError` (never retried) or `TryLaterError`."""
        if not self.shared:
            self._check_port()
            self._check_refusals()
            self._check_credential()
            return
        if self._is_up():
            return
        with lock_file(self._socket.with_suffix(".lock")):
            if not self._is_up():
                self._check_port()
                if self._number:
                    self._check_credential()
                    self._log_in_once()
                else:
                    self._log_in_with_retries()

    def _check_port(self) -> None:
        """Raise `UsageError` where the port of a gsissh is not configured: it can differ from that of ssh."""
        if self._needs_port and not self._configured().first("port"):
            manual_command = shlex.join([*self._settings.command, "-G", "--", self.host])
            raise UsageError(
                "ssh-configuration",
                'gsissh needs a port, as in ["gsissh", "-p", "2222"], and does not print the one in its configuration',
                subject=self.host,
                hint=f"Add -p to the site's ssh.command, or Port to its configuration file. To try: {manual_command}",
            )

    @property
    def _needs_port(self) -> bool:
        """Return whether the command is a gsissh without a port, which may be in its configuration file."""
        program, *argv = self._settings.command
        return PurePosixPath(program).name == "gsissh" and not any(
            argument.startswith("-p") for argument in argv
        )

    def _check_credential(self) -> None:
        """Check the proxy here, because servers reject all bad proxies with the same message, or renew the certificate.

        Raises `AccessError`; for a certificate see `SiteCertificate.ensure`.
        """
        if self._settings.auth == "gsi":
            self._made_proxy = ready_proxy(self._settings.proxy, subject=self.host).made
        elif self._settings.certificate is not None:
            query = functools.partial(_query_once, self._settings.command)
            hops = with_jump_hosts(self._configured(), query)
            certificate = SiteCertificate(self._settings.certificate, hops, subject=self.host)
            certificate.ensure(may_prompt=self._may_prompt(), on_event=self._on_event)

    @property
    def _command(self) -> tuple[str, ...]:
        """Return the site's ssh command, with the proxy that was created for it."""
        argv = self._settings.command
        if self._made_proxy is not None:
            argv = ("env", f"X509_USER_PROXY={self._made_proxy}", *argv)
        return (*argv, "-o", "GSSAPIAuthentication=yes") if self._settings.auth == "gsi" else argv

    def _log_in_with_retries(self) -> None:
        self._check_refusals()
        self._check_credential()
        try:
            with_retries(
                self._log_in_first,
                subject=self.host,
                attempts=self._attempts,
                first_wait=2.0,
                on_event=self._on_event,
            )
        except (AccessError, TryLaterError) as problem:
            self._note_refusal(problem)
            raise
        self._forget_refusals()

    def _check_refusals(self) -> None:
        """Raise `TryLaterError` where the host refused too often in a row; users at a terminal may try."""
        if self._refusals is not None and not self._may_prompt():
            self._refusals.check()

    def _note_refusal(self, problem: HibaliError) -> None:
        note_use("logins", self._name, request="login refused")
        if self._refusals is not None:
            self._refusals.refused(problem.message)

    def _forget_refusals(self) -> None:
        if self._refusals is not None:
            self._refusals.answered()

    def answered(self) -> None:
        """Note that a channel was opened: where each channel is a login, this one was accepted."""
        self._answered = True
        if not self.shared:
            self._forget_refusals()

    def _log_in_once(self) -> None:
        """Log in; after a refused further login, no further login is attempted."""
        if self._refused is not None:
            raise self._refused
        try:
            self._log_in_further()
        except HibaliError as problem:
            self._refused = problem
            raise

    @property
    def seconds(self) -> float | None:
        """The duration of the last login to this host; None where unknown."""
        with contextlib.suppress(OSError, ValueError):
            return float(read_regular(self._shared_path("took")))
        return None

    @property
    def waits_for_the_first(self) -> bool:
        """Whether a further login has to wait for the address of the first one."""
        return has_several(self._configured())

    def further(self, number: int) -> Login:
        """Return a further login to the same host, which asks nothing."""
        return Login(
            self._settings,
            self._limits,
            host=self.host,
            on_event=self._on_event,
            number=number,
            may_prompt=False,
        )

    def argv(self, command: str) -> list[str]:
        """Return the arguments that run one constant command there, over the shared login.

        `ProxyCommand=false` keeps a channel that finds no master from logging in by itself.
        """
        argv = [*self._command, *_options()]
        if self.shared:
            argv += ["-S", str(self._socket), "-o", "ControlMaster=no", "-o", "ProxyCommand=false"]
        else:
            argv += ["-o", "ControlPath=none", *_prompt_options(self._may_prompt()), *_DEADLINES]
            self._count_login()
            self._space_logins()
        return [*argv, "--", self.host, command]

    def forward_argv(self, node: str, port: int) -> list[str]:
        """Return the arguments that connect standard input and output to a port, over the shared login.

        Args:
            node: a name or address for the host, without characters that an argument must not have.
            port: the port there.
        """
        argv = [*self._command, *_options(), "-S", str(self._socket)]
        argv += ["-o", "ControlMaster=no", "-o", "ProxyCommand=false", "-W", f"{node}:{port:d}"]
        return [*argv, "--", self.host]

    def close(self) -> None:
        """End the shared login."""
        if self.shared and self._socket.exists():
            subprocesses.run(
                [*self._settings.command, "-S", str(self._socket), "-O", "exit", "--", self.host], timeout=15
            )

    def explain(self, errors: bytes) -> HibaliError:
        """Return the error for a channel that ended with ssh's exit code 255."""
        problem = explain_ssh(errors, self._settings.command, self.host)
        if problem.code == "host-key":
            problem = explain_ssh(errors + self._offered_key(), self._settings.command, self.host)
        if self._settings.auth == "gsi" and problem.code == "login-refused":
            problem.hint = (
                "The proxy itself is valid. Check that its identity (grid-proxy-info -identity) is registered at the site, and that "
                f"X509_CERT_DIR has the site's authority. {problem.hint}"
            )
        if self._needs_port and problem.code == "unreachable":
            problem.hint = f"The port was {self._configured().first('port')} (gsissh -G). {problem.hint}"
        if not self.shared and not self._answered:
            self._note_refusal(problem)
        return problem

    def unanswered(self) -> TryLaterError:
        """Return the error for a prompt that nobody answered in time."""
        return TryLaterError(
            "login-timed-out",
            "nobody answered ssh's prompt in time",
            subject=self.host,
            hint="Run the same command again.",
            transient=False,
        )

    def explain_end(self, status: int, output: bytes, subject: str) -> HibaliError | None:
        """Return the error for a session that ended before any program of hibali answered; see `ended_session`."""
        return ended_session(status, output, shlex.join([*self._settings.command, self.host]), subject)

    def words_of_server(self) -> bytes:
        """Return what the server prints instead of starting a program: it discards the standard error of SFTP servers.

        Nothing where that needs another login with a prompt.
        """
        if self.asks:
            return b""
        finished = subprocesses.run(self.argv("sftp-server"), timeout=_WORDS_SECONDS)
        return b"" if b"sftp connections only" in finished.stdout else finished.stderr + finished.stdout

    def _offered_key(self) -> bytes:
        """Return ssh's debug messages about an unknown host key, which has its fingerprint only in these; no login is tried."""
        argv = [*self._command, "-o", "LogLevel=DEBUG1", *_options(), *_prompt_options(False)]
        argv += ["-o", "ControlPath=none", "-o", "ConnectTimeout=30", "--", self.host, "true"]
        return subprocesses.run(argv, timeout=LOGIN_SECONDS).stderr

    def _is_up(self) -> bool:
        if not self._socket.exists():
            return False
        argv = [*self._settings.command, "-S", str(self._socket), "-O", "check", "--", self.host]
        return subprocesses.run(argv, timeout=15).exit_code == 0

    def _log_in_first(self) -> None:
        self.forget_further_refusal()
        self._shared_path("address").unlink(missing_ok=True)
        stderr = self._log_in()
        write_address(self._shared_path("address"), address_of_login(stderr))

    def forget_further_refusal(self) -> None:
        """Allow further logins again, unless one of this call was refused just before."""
        refused = self._shared_path("refused")
        with contextlib.suppress(FileNotFoundError):
            if not self._since <= refused.stat().st_mtime <= time.time():
                refused.unlink(missing_ok=True)

    def _note_further_refusal(self) -> None:
        """Note the time by this machine's clock: that of the filesystem may be some milliseconds behind."""
        refused, now = self._shared_path("refused"), time.time()
        refused.touch(mode=0o600)
        os.utime(refused, (now, now))

    def _log_in_further(self) -> None:
        """Log in to the address of the first one. Until one was accepted, logins are sequential: sites ban clients after several refusals."""
        address = read_address(self._shared_path("address")) if self.waits_for_the_first else None
        with contextlib.ExitStack() as alone:
            if not self._pace.accepts_further():
                alone.enter_context(lock_file(self._shared_path("trying")))
                if self._pace.accepts_further():
                    alone.close()
            self._check_further()
            try:
                self._log_in(*(options_for_address(address) if address else []))
            except AccessError:
                self._pace.note_further(accepted=False)
                self._note_further_refusal()
                raise
            if not self._shared_path("refused").exists():  # of one that began at the same time
                self._pace.note_further(accepted=True)

    def _check_further(self) -> None:
        """Raise `AccessError` where a further login was refused."""
        if self._shared_path("refused").exists():
            raise AccessError(
                "further-refused",
                "a further login was refused and is not retried",
                subject=self.host,
            )

    def _log_in(self, *more: str) -> bytes:
        """Log in, and return ssh's standard error."""
        self._space_logins()
        if self._number:
            self._check_further()  # one that began before may have been refused while this one waited
        self._socket.unlink(missing_ok=True)
        # ssh prints the address at VERBOSE, and GSI's error chain at DEBUG1; it uses the first option of each kind
        level = "DEBUG1" if self._settings.auth == "gsi" else "ERROR" if self._number else "VERBOSE"
        argv = [
            *self._command,
            *("-o", f"LogLevel={level}"),
            *more,
            *_options(),
            *_prompt_options(self._may_prompt()),
            *prefer_cipher(self._ciphers(), self._ciphers("-F", "none")),
            *("-o", "ControlMaster=yes", "-o", f"ControlPersist={self._settings.persist_seconds}"),
            *_DEADLINES,
            *("-S", str(self._socket), "-N", "--", self.host),
        ]
        self._on_event(Noted(f"Logging in to {self.host}."))
        began = time.monotonic()
        finished = subprocesses.run(
            argv, timeout=LOGIN_SECONDS, foreground=self._may_prompt(), stop_after=_SOCKET_EXISTS
        )
        took = time.monotonic() - began
        if finished.exit_code != 0 and not (_SOCKET_EXISTS in finished.stderr and self._is_up()):
            if self._number:  # the first one succeeded just before
                self._pace.failed(finished.stderr.decode("utf-8", "replace"))
            raise self.explain(finished.stderr)
        self._pace.succeeded(took, self.seconds)
        self._count_login()
        self._shared_path("took").touch(mode=0o600)
        self._shared_path("took").write_text(f"{took:.3f}\n", "ascii")
        return finished.stderr

    def _count_login(self) -> None:
        self.logins += 1
        note_use("logins", self._name, request="login")

    def _ciphers(self, *more: str) -> str:
        """Return the ciphers that ssh offers to this host, in its order."""
        return self._configured(*more).first("ciphers")

    @property
    def account(self) -> str:
        """Return user, host and port of the login: the same for all names of a host in ssh's configuration."""
        options = self._configured()
        return (
            f"{options.first('user')}@{options.first('hostname', self.host).lower()}:{options.first('port')}"
        )

    def _configured(self, *more: str) -> SshOptions:
        """Return ssh's options for this host; empty where this ssh has no -G (ssh(1))."""
        with _PROMPT_LOCK:  # several logins start at once and share one answer
            return _query_once((*self._settings.command, *more), self.host)

    def _space_logins(self) -> None:
        """Keep the site's interval between logins: some sites ban clients that connect too often."""
        stamp = control_folder() / f"{self._name}.at"
        with lock_file(stamp.with_suffix(".spacing")):
            starts = self._pace.read_starts(stamp)
            pause(self._pace.wait_after(starts, time.time()))
            self._pace.write_start(stamp, starts, time.time())


Opened = TypeVar("Opened")
_MOST_LOGINS = 4  # to a server that opens one session over each


def open_session(login: Login, opened: Callable[[Login], Opened]) -> Opened:
    """Return the result of `opened` for the login, or for a further one while the server opens no further session over it.

    Further logins ask nothing. Raises what `opened` does for the first login.
    """
    refused: TryLaterError | None = None
    for number in range(_MOST_LOGINS):
        tried = login.further(number) if number else login
        try:
            return opened(tried)
        except TryLaterError as problem:
            if refused is None and problem.code != SESSION_LIMIT:
                raise
            refused = refused or problem
        except HibaliError:
            if refused is None:
                raise
            break  # this login is not accepted
        finally:
            login.logins += tried.logins if number else 0
    assert refused is not None
    raise refused


def login_name(settings: SshSettings, host: str) -> str:
    """Return the name of a login: logins with the same settings and host share it."""
    name = "\0".join([*settings.command, host])
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:16]


def login_refusals(settings: SshSettings, host: str) -> Refusals:
    """Return the recorded refusals of logins there."""
    return Refusals("logins", login_name(settings, host), subject=host)


def address_of(settings: SshSettings) -> tuple[str, str]:
    """Return the host and port of a site's logins, from ssh's configuration."""
    options = _query_once(settings.command, settings.host)
    return options.first("hostname", settings.host).lower(), options.first("port")


@functools.cache
def _query_once(command: tuple[str, ...], host: str) -> SshOptions:
    return query_options(command, host)


def prefer_cipher(ciphers: str, stock: str) -> list[str]:
    """Return the option that puts the fastest cipher first; empty where the configuration sets an order."""
    names = ciphers.split(",")
    if ciphers != stock or _FAST_CIPHER not in names:
        return []
    return ["-o", "Ciphers=" + ",".join([_FAST_CIPHER, *(name for name in names if name != _FAST_CIPHER)])]


def _options() -> list[str]:
    return [argument for option in _SAFE_OPTIONS for argument in ("-o", option)]


def unattended_options() -> list[str]:
    """Return the options with which a site's ssh logs in to another site: hibali's own, without questions and sharing.

    RemoteCommand is left out, because OpenSSH before 7.6 does not know it.
    """
    return [
        *("-o", "IgnoreUnknown=RemoteCommand"),
        *_options(),
        *_prompt_options(False),
        *("-o", "ControlMaster=no", "-o", "ControlPath=none"),
        *_DEADLINES,
    ]


def _prompt_options(may_prompt: bool) -> list[str]:  # noqa: FBT001  # the one thing it is about
    """Return the options for questions: without a terminal none are allowed, and an unknown host key is an error."""
    if may_prompt:
        return ["-o", "StrictHostKeyChecking=ask"]
    return ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]
