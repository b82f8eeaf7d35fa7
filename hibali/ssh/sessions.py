"""Log in once per site with an OpenSSH master that every later connection shares (S7)."""

from __future__ import annotations

import contextlib
import fcntl
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from hibali import subprocesses
from hibali.config.model import Limits, SshSettings
from hibali.errors import AccessError, HibaliError, TryLaterError, UsageError
from hibali.events import Listener, Noted, ignore
from hibali.files import control_folder
from hibali.rate_limits import Refusals, note_use
from hibali.retry import pause, with_retries
from hibali.ssh import connect_helper
from hibali.ssh.gsi import explain_gss, ready_proxy, without_debug

# What ssh says of a login it made without a proxy, at LogLevel VERBOSE (sshconnect2.c, ssh_userauth2).
_AUTHENTICATED = re.compile(rb"^Authenticated to .* \(\[([^\]\s]+)\]:([0-9]+)\)", re.MULTILINE)
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}

# Settings of ssh_config(5) under which the way to a host is more than an address; what they say where they are not used.
_OTHER_WAYS = {
    "proxycommand": "none",
    "proxyjump": "none",
    "bindaddress": "none",
    "bindinterface": "none",
    "canonicalizehostname": "false",
}

Address = tuple[str, int]


def has_several(configured: Mapping[str, str]) -> bool:
    """Whether the host's name stands for several addresses that ssh would choose from.

    `configured` is what `ssh -G` tells. False where ssh goes through another host, or in a way that an
    address alone does not describe: nobody here could say which machine that leads to.
    """
    if any(configured.get(name, unused) != unused for name, unused in _OTHER_WAYS.items()):
        return False
    name, port = configured.get("hostname", ""), configured.get("port", "22")
    family = _FAMILIES.get(configured.get("addressfamily", "any"), socket.AF_UNSPEC)
    return bool(name) and len(resolve(name, port, family)) > 1


def resolve(name: str, port: str, family: int = socket.AF_UNSPEC) -> set[str]:
    """The addresses of a name; none where it has none, which ssh will say better."""
    try:
        found = socket.getaddrinfo(name, port, family, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return set()
    return {str(address[0]) for *_, address in found}


def address_told(said: bytes) -> Address | None:
    """Where ssh says that it logged in; None through a proxy. What a banner printed before that does not count."""
    told = _AUTHENTICATED.findall(said)
    return _address(*told[-1]) if told else None


def write_address(path: Path, address: Address | None) -> None:
    """Keep it for further logins, beside the login's socket; None forgets it."""
    path.unlink(missing_ok=True)
    if address is not None:
        path.touch(mode=0o600, exist_ok=False)
        path.write_text(f"{address[0]} {address[1]}\n", "ascii")


def read_address(path: Path) -> Address | None:
    """What was kept there."""
    with contextlib.suppress(OSError):
        words = path.read_bytes().split()
        return _address(*words) if len(words) == 2 else None
    return None


def _address(address: bytes, port: bytes) -> Address | None:
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(address.decode("ascii"))), int(port)
    return None


def only_to(address: Address) -> list[str]:
    """The options of ssh that lead to this address and leave everything else as it is configured for the name.

    `HostName` would do, too, but a `Match host`, a certificate's principals and a Kerberos ticket are for the name.
    """
    words = [sys.executable, "-I", "-S", connect_helper.__file__, address[0], str(address[1])]
    command = " ".join(shlex.quote(word) for word in words).replace("%", "%%")
    return ["-o", f"ProxyCommand={command}", "-o", "ProxyUseFdpass=yes"]


_ASKING = threading.Lock()
# ssh goes on without its socket then, and would wait for ever: the login of a call that was killed came in before it.
_TAKEN = b"already exists, disabling multiplexing"
LOGIN_SECONDS = 120.0  # a person may have to find a second factor

_FAST_CIPHER = (
    "aes128-gcm@openssh.com"  # three times as fast as ssh's first choice, where both have AES instructions
)

# What the user's configuration must not add to a line of ours: S7 names them.
_ALWAYS = (
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


class Login:
    """The way to one host: `argv` gives the words before a command there, after `ensure` made sure of a login."""

    def __init__(
        self,
        settings: SshSettings,
        limits: Limits,
        *,
        host: str | None = None,
        on_event: Listener = ignore,
        number: int = 0,
        may_ask: bool = True,
        attempts: int = 3,
        since: float | None = None,
    ) -> None:
        """`number` tells several logins to one host apart; only the first one may ask a person for anything, or be tried again.

        `attempts` is how often the first one is tried at a time. The others go to the address that the first one went to, and none is tried again once one was refused.
        A first one forgets refusals of further logins from before `since` (seconds since the epoch; now, unless given): the
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
        # one try to come back is counted by whoever tries; further logins have their own way to give up
        self._refusals = login_refusals(settings, self.host) if attempts > 1 and not number else None
        self._number = number
        self._asks = may_ask and not number
        self._refused: HibaliError | None = None
        self._made_proxy: Path | None = None

    @property
    def _socket(self) -> Path:
        return control_folder() / (f"{self._name}-{self._number}" if self._number else self._name)

    def _beside(self, what: str) -> Path:
        """What all logins to this host share, beside their sockets."""
        return control_folder() / f"{self._name}.{what}"

    def _may_ask(self) -> bool:
        return subprocesses.has_terminal() and self._asks

    @property
    def shared(self) -> bool:
        """Whether a master carries the channels; where masters are forbidden every channel is a login."""
        return self._settings.persist_seconds > 0

    def ensure(self) -> None:
        """Log in unless a login is kept already. Raises `AccessError` (never retried) or `TryLaterError`."""
        if not self.shared:
            self._check_port()
            self._check_proxy()
            self._check_welcome()
            return
        if self._is_up():
            return
        with self._only_one(self._socket.with_suffix(".lock")):
            if not self._is_up():
                self._check_port()
                self._check_proxy()
                if self._number:
                    self._log_in_once()
                else:
                    self._log_in_patiently()

    def _check_port(self) -> None:
        """Raise `UsageError` where nobody says which port a gsissh goes to: it need not be that of ssh."""
        if self._port_is_asked and "port" not in self._configured():
            by_hand = shlex.join([*self._settings.command, "-G", "--", self.host])
            raise UsageError(
                "ssh-configuration",
                'gsissh needs a port, as in ["gsissh", "-p", "2222"], and does not tell one of its configuration',
                subject=self.host,
                hint=f"Add -p to the site's ssh.command, or Port to its file; by hand: {by_hand}",
            )

    @property
    def _port_is_asked(self) -> bool:
        """Whether the command is a gsissh without a port, which may be in its configuration file."""
        program, *words = self._settings.command
        return PurePosixPath(program).name == "gsissh" and not any(word.startswith("-p") for word in words)

    def _check_proxy(self) -> None:
        """A server refuses all that is wrong with a proxy in the same words: it is looked at here. Raises `AccessError`."""
        if self._settings.auth == "gsi":
            self._made_proxy = ready_proxy(self._settings.proxy, subject=self.host).made

    @property
    def _command(self) -> tuple[str, ...]:
        """The site's ssh, with the proxy that was made for it."""
        words = self._settings.command
        if self._made_proxy is not None:
            words = ("env", f"X509_USER_PROXY={self._made_proxy}", *words)
        return (*words, "-o", "GSSAPIAuthentication=yes") if self._settings.auth == "gsi" else words

    def _log_in_patiently(self) -> None:
        self._check_welcome()
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

    def _check_welcome(self) -> None:
        """Raise `TryLaterError` where the host refused too often in a row; whoever sits at a terminal may try."""
        if self._refusals is not None and not self._may_ask():
            self._refusals.check()

    def _note_refusal(self, problem: HibaliError) -> None:
        note_use("logins", self._name, what="login refused")
        if self._refusals is not None:
            self._refusals.refused(problem.message)

    def _forget_refusals(self) -> None:
        if self._refusals is not None:
            self._refusals.answered()

    def answered(self) -> None:
        """A channel was opened: where each one is a login of its own, that was one."""
        if not self.shared:
            self._forget_refusals()

    def _log_in_once(self) -> None:
        """A site that has no room for a further login is not asked for it again."""
        if self._refused is not None:
            raise self._refused
        try:
            self._log_in_further()
        except HibaliError as problem:
            self._refused = problem
            raise

    @property
    def seconds(self) -> float | None:
        """How long the last login to this host took; None where nobody knows."""
        with contextlib.suppress(OSError, ValueError):
            return float(self._beside("took").read_bytes())
        return None

    @property
    def waits_for_the_first(self) -> bool:
        """Whether a further login has to know where the first one went before it can begin."""
        return has_several(self._configured())

    def argv(self, command: str) -> list[str]:
        """The words that run one constant command there, over the kept login.

        `ProxyCommand=false` keeps a channel that finds no master from logging in by itself.
        """
        words = [*self._command, *_options()]
        if self.shared:
            words += ["-S", str(self._socket), "-o", "ControlMaster=no", "-o", "ProxyCommand=false"]
        else:
            words += ["-o", "ControlPath=none", *_asking(self._may_ask())]
            self._count_login()
            self._space_logins()
        return [*words, "--", self.host, command]

    def close(self) -> None:
        """End the kept login now."""
        if self.shared and self._socket.exists():
            subprocesses.run(
                [*self._settings.command, "-S", str(self._socket), "-O", "exit", "--", self.host], timeout=15
            )

    def explain(self, errors: bytes) -> HibaliError:
        """The error for a channel that ended with ssh's own 255."""
        problem = explain_ssh(errors, self._settings.command, self.host)
        if self._settings.auth == "gsi" and problem.code == "login-refused":
            problem.hint = (
                "The proxy itself is valid: does the site know its holder (grid-proxy-info -identity), and this machine the "
                f"site's authority (X509_CERT_DIR)? {problem.hint}"
            )
        if self._port_is_asked and problem.code == "unreachable":
            problem.hint = (
                f"It went to port {self._configured().get('port')}, as gsissh -G says. {problem.hint}"
            )
        if not self.shared:
            self._note_refusal(problem)
        return problem

    def _is_up(self) -> bool:
        if not self._socket.exists():
            return False
        words = [*self._settings.command, "-S", str(self._socket), "-O", "check", "--", self.host]
        return subprocesses.run(words, timeout=15).exit_code == 0

    def _log_in_first(self) -> None:
        self._forget_further_refusal()
        self._beside("address").unlink(missing_ok=True)
        said = self._log_in("-o", "LogLevel=VERBOSE")  # the first of a kind of option counts
        write_address(self._beside("address"), address_told(said))

    def _forget_further_refusal(self) -> None:
        """Let further logins be tried again, unless one of this very call was refused a moment ago."""
        refused = self._beside("refused")
        with contextlib.suppress(FileNotFoundError):
            if not self._since <= refused.stat().st_mtime <= time.time():
                refused.unlink(missing_ok=True)

    def _note_further_refusal(self) -> None:
        """By our own clock: that of the filesystem may be some milliseconds behind."""
        refused, now = self._beside("refused"), time.time()
        refused.touch(mode=0o600)
        os.utime(refused, (now, now))

    def _log_in_further(self) -> None:
        """To where the first one went. Until one was accepted they go one by one: a row of refusals is how one is banned."""
        accepted, refused = self._beside("accepted"), self._beside("refused")
        address = read_address(self._beside("address")) if self.waits_for_the_first else None
        with contextlib.ExitStack() as alone:
            if not accepted.exists():
                alone.enter_context(self._only_one(self._beside("trying")))
                if accepted.exists():
                    alone.close()
            if refused.exists():
                raise AccessError(
                    "further-refused",
                    "a further login was refused, and is not tried again",
                    subject=self.host,
                )
            try:
                self._log_in(*(only_to(address) if address else []))
            except AccessError:
                accepted.unlink(missing_ok=True)
                self._note_further_refusal()
                raise
            accepted.touch(mode=0o600)

    def _log_in(self, *more: str) -> bytes:
        """Log in, and return what ssh said meanwhile."""
        self._space_logins()
        self._socket.unlink(missing_ok=True)
        # the address is told at VERBOSE, the error chain of GSI at DEBUG1; the first of a kind of option counts
        level = "DEBUG1" if self._settings.auth == "gsi" else "ERROR" if self._number else "VERBOSE"
        words = [
            *self._command,
            *("-o", f"LogLevel={level}"),
            *more,
            *_options(),
            *_asking(self._may_ask()),
            *prefer_cipher(self._ciphers(), self._ciphers("-F", "none")),
            *("-o", "ControlMaster=yes", "-o", f"ControlPersist={self._settings.persist_seconds}"),
            *("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4", "-o", "ConnectTimeout=30"),
            *("-S", str(self._socket), "-N", "--", self.host),
        ]
        self._on_event(Noted(f"Logging in to {self.host}."))
        began = time.monotonic()
        finished = subprocesses.run(words, timeout=LOGIN_SECONDS, foreground=self._may_ask(), enough=_TAKEN)
        took = time.monotonic() - began
        if finished.exit_code != 0 and not (_TAKEN in finished.stderr and self._is_up()):
            raise self.explain(finished.stderr)
        self._count_login()
        self._beside("took").touch(mode=0o600)
        self._beside("took").write_text(f"{took:.3f}\n", "ascii")
        return finished.stderr

    def _count_login(self) -> None:
        self.logins += 1
        note_use("logins", self._name, what="login")

    def _ciphers(self, *more: str) -> str:
        """What ssh would offer to this host, in its order."""
        return self._configured(*more).get("ciphers", "")

    @property
    def account(self) -> str:
        """Whom one logs in as and where: the same for all names of a host in ssh's own configuration."""
        told = self._configured()
        return f"{told.get('user', '')}@{told.get('hostname', self.host).lower()}:{told.get('port', '')}"

    def _configured(self, *more: str) -> dict[str, str]:
        """The last value of each setting for this host; empty where this ssh cannot tell (ssh(1), -G)."""
        with _ASKING:  # several logins begin at once, and one answer is good for all
            return _configured((*self._settings.command, *more), self.host)

    def _space_logins(self) -> None:
        """Keep the site's interval between logins: some sites ban who connects too often."""
        stamp = control_folder() / f"{self._name}.at"
        with self._only_one(stamp.with_suffix(".spacing")):
            with contextlib.suppress(OSError):
                since = time.time() - stamp.stat().st_mtime
                if 0 <= since < self._limits.login_interval_seconds:
                    pause(self._limits.login_interval_seconds - since)
            stamp.touch(mode=0o600)

    @contextlib.contextmanager
    def _only_one(self, path: Path) -> Iterator[None]:
        """One at a time, of all processes; the folder is local, where flock(2) holds."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def login_name(settings: SshSettings, host: str) -> str:
    """A name for the way to a host: whatever goes there by the same words shares it."""
    name = "\0".join([*settings.command, host])
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:16]


def login_refusals(settings: SshSettings, host: str) -> Refusals:
    """What is remembered of logins there."""
    return Refusals("logins", login_name(settings, host), subject=host)


def address_of(settings: SshSettings) -> tuple[str, str]:
    """The host and port that logins of a site go to, as ssh's own configuration has them."""
    told = _configured(settings.command, settings.host)
    return told.get("hostname", settings.host).lower(), told.get("port", "")


@functools.cache
def _configured(command: tuple[str, ...], host: str) -> dict[str, str]:
    told = subprocesses.run([*command, "-G", "--", host], timeout=15)
    lines = told.stdout.decode("utf-8", "replace").splitlines() if told.exit_code == 0 else []
    return {name: value for name, _, value in (line.partition(" ") for line in lines)}


def prefer_cipher(ciphers: str, stock: str) -> list[str]:
    """The option that puts the fastest cipher first; none where the user's or the host's configuration chose an order."""
    words = ciphers.split(",")
    if ciphers != stock or _FAST_CIPHER not in words:
        return []
    return ["-o", "Ciphers=" + ",".join([_FAST_CIPHER, *(word for word in words if word != _FAST_CIPHER)])]


def _options() -> list[str]:
    return [word for option in _ALWAYS for word in ("-o", option)]


def unattended_options() -> list[str]:
    """What a site's own ssh is given to log in to another site: as ours, and nothing is asked or shared.

    OpenSSH before 7.6 knows no RemoteCommand, and so has none.
    """
    return [
        *("-o", "IgnoreUnknown=RemoteCommand"),
        *_options(),
        *_asking(False),
        *("-o", "ControlMaster=no", "-o", "ControlPath=none"),
        *("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4", "-o", "ConnectTimeout=30"),
    ]


def _asking(may_ask: bool) -> list[str]:  # noqa: FBT001  # the one thing it is about
    """Without a terminal nothing may be asked, and an unknown host key is an end."""
    if may_ask:
        return ["-o", "StrictHostKeyChecking=ask"]
    return ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]


def explain_ssh(errors: bytes, command: Sequence[str], host: str) -> HibaliError:
    """What ssh(1) meant by status 255: it says so only in words on standard error."""
    said = errors.decode("utf-8", "replace")
    text = without_debug(said)
    last = text.splitlines()[-1].strip() if text else "ssh gave no reason"
    by_hand = shlex.join([*command, host])
    if found := explain_gss(said, subject=host, by_hand=shlex.join([*command, "-v", host])):
        return found
    if "Host key verification failed" in text or "REMOTE HOST IDENTIFICATION HAS CHANGED" in text:
        return AccessError(
            "host-key",
            "the host's key is unknown or has changed",
            subject=host,
            hint=f"Check it with the site, then log in once by hand: {by_hand}",
        )
    denied = (
        "Permission denied (",  # ssh's own words: a shell over there says "Permission denied" of files
        "Permission denied, please try again",
        "Too many authentication failures",
        "No more authentication methods",
        "no mutual signature",
    )
    if any(words in text for words in denied):
        return AccessError(
            "login-refused",
            f"the login was refused, or would have asked for something: {last}",
            subject=host,
            hint=f"Log in once by hand: {by_hand}",
        )
    if any(
        words in text
        for words in (
            "Bad configuration option",
            "Can't open user config file",
            "Bad owner or permissions",
            "Unable to negotiate with",
        )
    ):
        return UsageError(
            "ssh-configuration",
            last,
            subject=host,
            hint=f"Correct the site's ssh settings; by hand: {by_hand}",
        )
    return TryLaterError("unreachable", last, subject=host, hint=f"Try by hand: {by_hand}")
