"""Run OpenSSH's server for the current account, with a private home and optionally another login shell."""

from __future__ import annotations

import os
import pwd
import shlex
import subprocess
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.services.podman import podman_environment
from tests.services.processes import (
    MARK,
    MissingPackageError,
    answers,
    free_port,
    program,
    start,
    wait_until,
)

HOST = "far"


@dataclass(frozen=True)
class SshServer:
    """A running sshd: `ssh -F config host` logs in, with `home` as the home folder."""

    folder: str
    port: int
    user: str
    host: str = HOST

    @property
    def config(self) -> Path:
        return Path(self.folder) / "config"

    @property
    def home(self) -> Path:
        return Path(self.folder) / "home"

    @property
    def log(self) -> Path:
        return Path(self.folder) / "sshd.log"

    @property
    def command(self) -> list[str]:
        """Return the value of a site's `command`: the user's ssh with this server's configuration."""
        return ["ssh", "-F", str(self.config)]

    def run(self, line: str) -> subprocess.CompletedProcess[bytes]:
        """Run a command line in the server's login shell."""
        return subprocess.run(
            [*self.command, self.host, line],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=60,
        )


def start_sshd(
    session: Path,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    around: Sequence[str] = (),
) -> SshServer:
    """Start sshd, behind the command prefix `around`; `environment` is set for every remote command."""
    server = _prepared(folder)
    home = {"HOME": str(server.home)}
    # Without PAM, sshd runs commands in the home of the passwd entry; Debian's bash reads this file under sshd.
    (server.home / ".bashrc").write_text('cd "$HOME"\n')
    _configure(session, server, {**home, **(environment or {})})
    return _started(session, server, [*around, program("sshd", "openssh-server")])


def on_another_machine(folder: Path, *mounts: Sequence[str]) -> list[str]:
    """Return the prefix of a server that is taken for one on another machine; it requires root.

    It sees the files of this one, except for `mounts`, each the arguments of mount(8).
    """
    boot = folder / f"boot-{uuid.uuid4()}"
    boot.write_text(f"{uuid.uuid4()}\n")
    all_mounts = [("--bind", str(boot), "/proc/sys/kernel/random/boot_id"), *mounts]
    script = " && ".join([*(shlex.join(["mount", *words]) for words in all_mounts), 'exec "$@"'])
    unshare = program("unshare", "util-linux")
    return [unshare, "--mount", "--propagation", "slave", "/bin/sh", "-c", script, "sh"]


def start_sshd_as(session: Path, folder: Path, account: tuple[str, int], around: Sequence[str]) -> SshServer:
    """Start sshd for another account, by name and uid, in the environment that the command prefix `around` creates.

    It requires root. The account, with `home` as its home, needs to exist in that environment only.
    """
    sshd = program("sshd", "openssh-server")
    name, number = account
    server = _prepared(folder, name)
    folder.chmod(0o711)
    os.chown(server.home, number, number)
    _configure(session, server, {"HOME": str(server.home)})
    return _started(session, server, [*around, sshd])


def start_sshd_with_command(
    session: Path,
    folder: Path,
    command: Callable[[SshServer], str],
    environment: Mapping[str, str] | None = None,
) -> SshServer:
    """Start sshd with a forced command."""
    sshd = program("sshd", "openssh-server")
    server = _prepared(folder)
    known = {"HOME": str(server.home), **(environment or {})}
    _configure(session, server, known, f"ForceCommand {command(server)}\n")
    return _started(session, server, [sshd])


def start_password_sshd(session: Path, folder: Path) -> SshServer:
    """Start sshd that accepts no key, so that ssh prompts for a password."""
    server = _prepared(folder)
    (folder / "authorized_keys").write_text("")
    _configure(session, server, {"HOME": str(server.home)})
    config = folder / "sshd_config"
    asked = config.read_text().replace("PasswordAuthentication no", "PasswordAuthentication yes")
    config.write_text(asked.replace("AuthenticationMethods publickey", "AuthenticationMethods any"))
    return _started(session, server, [program("sshd", "openssh-server")])


def start_certificate_sshd(session: Path, folder: Path) -> SshServer:
    """Start sshd that accepts only keys with a certificate of the authority `ca` in its folder."""
    server = _prepared(folder)
    words = [program("ssh-keygen", "openssh-client"), "-q", "-t", "ed25519", "-N", "", "-C", "ca"]
    subprocess.run([*words, "-f", folder / "ca"], check=True, stdin=subprocess.DEVNULL)
    (folder / "authorized_keys").write_text("")
    _configure(session, server, {"HOME": str(server.home)}, f"TrustedUserCAKeys {folder}/ca.pub\n")
    return _started(session, server, [program("sshd", "openssh-server")])


# what pam_exec runs: a code counts once, and every attempt is written down
_CHECK_CODE = """#!/bin/sh
cd {folder} || exit 1
code=$(tr -d '\\0')
echo "$code" >> tried
exec 9> codes.lock
flock 9
grep -qxF -- "$code" codes && ! grep -qxF -- "$code" used && echo "$code" >> used
"""


def start_one_time_code_sshd(session: Path, folder: Path, more: str = "") -> SshServer:
    """Start sshd that asks PAM for a one-time code at each login; it requires root.

    Valid codes are the lines of `codes` in its folder; `tried` has all that came, `used` those that were accepted.
    """
    if os.geteuid() != 0 or not _may_unshare():
        raise MissingPackageError("sshd with its own PAM configuration needs root and mount namespaces")
    sshd = program("sshd", "openssh-server")
    server = _prepared(folder)
    for name in ("codes", "used", "tried"):
        (folder / name).write_text("")
    check = folder / "check-code"
    check.write_text(_CHECK_CODE.format(folder=shlex.quote(str(folder))))
    check.chmod(0o700)
    (folder / "pam.d").mkdir()
    rules = [f"auth required pam_exec.so quiet expose_authtok {check}"]
    rules += [f"{kind} required pam_permit.so" for kind in ("auth", "account", "session")]
    (folder / "pam.d" / "sshd").write_text("".join(f"{rule}\n" for rule in rules))
    _configure(session, server, {"HOME": str(server.home)}, more)
    config = folder / "sshd_config"
    text = config.read_text()
    for old, new in (
        ("UsePAM no", "UsePAM yes"),
        ("KbdInteractiveAuthentication no", "KbdInteractiveAuthentication yes"),
        ("AuthenticationMethods publickey", "AuthenticationMethods keyboard-interactive"),
        ("PermitRootLogin prohibit-password", "PermitRootLogin yes"),
    ):
        text = text.replace(old, new)
    config.write_text(text)
    enter = [program("unshare", "util-linux"), "--mount", "--propagation", "slave", "/bin/sh", "-c"]
    mount = 'mount --bind "$1" /etc/pam.d; shift; exec "$@"'
    return _started(session, server, [*enter, mount, "sh", str(folder / "pam.d"), sshd])


def start_sftp_gateway(session: Path, folder: Path, more: str = "") -> SshServer:
    """Start sshd that allows SFTP only; `more` are further arguments of sftp-server."""
    return start_sshd_with_command(session, folder, lambda server: f"internal-sftp -d {server.home} {more}")


def start_unprivileged_sftp(session: Path, folder: Path) -> SshServer:
    """Start sshd that allows SFTP only, with file permissions enforced even if root runs it."""
    without = "setpriv --bounding-set=-dac_override,-dac_read_search " if os.geteuid() == 0 else ""
    return start_sshd_with_command(
        session, folder, lambda server: f"{without}{sftp_server_program()} -d {server.home}"
    )


def start_other_account_sftp(session: Path, folder: Path) -> SshServer:
    """Start sshd that allows SFTP only, as the account with the uid and gid 65534; it requires root."""
    become = "setpriv --reuid=65534 --regid=65534 --clear-groups"
    return start_sshd_with_command(session, folder, lambda _: f"{become} {sftp_server_program()} -d /tmp")


def sftp_server_program() -> str:
    """Return the path of sftp-server, which depends on the distribution."""
    for path in ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server"):
        if Path(path).exists():
            return path
    raise MissingPackageError("sftp-server is missing: install the package openssh-sftp-server")


def start_sshd_with_shell(session: Path, folder: Path, shell: str) -> SshServer:
    """Start sshd whose account has the login shell `shell`, and start-up files that print on stdout and stderr.

    With root, only sshd sees a passwd file with another shell and home. Without root, ForceCommand
    starts the shell from the account's own one.
    """
    path = program(shell, shell if shell != "sh" else "dash")
    sshd = program("sshd", "openssh-server")
    server = _prepared(folder)
    write_chatter(server.home)
    if os.geteuid() == 0 and _may_unshare():
        _configure(session, server, {})
        passwd = folder / "passwd"
        passwd.write_text(_passwd_with(server, path))
        enter = [program("unshare", "util-linux"), "--mount", "--propagation", "slave", "/bin/sh", "-c"]
        return _started(
            session,
            server,
            [*enter, 'mount --bind "$1" /etc/passwd; shift; exec "$@"', "sh", str(passwd), sshd],
        )
    wrapper = folder / "shell"
    wrapper.write_text(
        f'#!/bin/sh\ncd "$HOME"\nexport SHELL={path}\nexec {path} -c "$SSH_ORIGINAL_COMMAND"\n'
    )
    wrapper.chmod(0o755)
    _configure(session, server, {"HOME": str(server.home)}, f"ForceCommand {wrapper}\n")
    return _started(session, server, [sshd])


def write_chatter(home: Path) -> None:
    """Write start-up files for sh, bash, tcsh, fish and sshd, which print before any command runs."""
    out, err = 'Welcome!  "$HOME" is 99% full \\ ``$(date)', "\x1b[31mModules based on Lua\x1b[0m"
    shown = f"cat {home}/motd; cat {home}/warning "
    (home / "motd").write_bytes(f"{out}\n{{not json\n\x00\x01".encode() + b"\xff\xfe\n")
    (home / "warning").write_text(f"{err}\n")
    for name in (".bashrc", ".profile", ".bash_profile", ".ssh/rc"):
        _write(home / name, f"{shown}>&2\n")
    _write(home / ".tcshrc", f"{shown}> /dev/stderr\n")
    _write(home / ".config/fish/config.fish", f"{shown}>&2\n")


def _prepared(folder: Path, account: str = "") -> SshServer:
    folder.mkdir(mode=0o700, parents=True)
    user = account or pwd.getpwuid(os.geteuid()).pw_name
    server = SshServer(folder=str(folder), port=free_port(), user=user)
    server.home.mkdir()
    for name in ("host_key", "login_key"):
        words = [program("ssh-keygen", "openssh-client"), "-q", "-t", "ed25519", "-N", "", "-C", name]
        subprocess.run([*words, "-f", folder / name], check=True, stdin=subprocess.DEVNULL)
    (folder / "authorized_keys").write_bytes((folder / "login_key.pub").read_bytes())
    key = (folder / "host_key.pub").read_text().rsplit(" ", 1)[0]
    (folder / "known_hosts").write_text(f"{HOST},[127.0.0.1]:{server.port},127.0.0.1 {key}\n")
    server.config.write_text(
        f"Host {HOST}\n"
        "  HostName 127.0.0.1\n"
        f"  Port {server.port}\n"
        f"  User {server.user}\n"
        f"  IdentityFile {folder}/login_key\n"
        "  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n"
        "  StrictHostKeyChecking yes\n"
    )
    return server


def _configure(session: Path, server: SshServer, environment: Mapping[str, str], more: str = "") -> None:
    folder = server.folder
    known = {MARK: f"{session}/", **podman_environment(session / "podman"), **environment}
    (Path(folder) / "sshd_config").write_text(
        f"Port {server.port}\n"
        "ListenAddress 127.0.0.1\n"
        f"HostKey {folder}/host_key\n"
        f"PidFile {folder}/sshd.pid\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\n"
        "AuthenticationMethods publickey\n"
        "PasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\n"
        "PermitRootLogin prohibit-password\n"
        "UsePAM no\n"
        # the parent folders belong to root or are sticky
        "StrictModes no\n"
        f"AllowUsers {server.user}\n"
        # many tests log in at the same time; the sessions per connection keep OpenSSH's default limit of 10
        "MaxStartups 100:30:200\n"
        "UseDNS no\n"
        f"SetEnv {' '.join(f'{name}={value}' for name, value in known.items())}\n"
        f"Subsystem sftp internal-sftp -d {folder}/home\n{more}"
    )


def _started(session: Path, server: SshServer, words: list[str]) -> SshServer:
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # the privilege separation folder of root's sshd
    pid = start(session, [*words, "-D", "-e", "-f", f"{server.folder}/sshd_config"], server.log)
    wait_until(lambda: answers(server.port), pid, server.log)
    return server


def _passwd_with(server: SshServer, shell: str) -> str:
    lines = Path("/etc/passwd").read_text().splitlines()
    mine = [line.split(":") for line in lines if line.startswith(f"{server.user}:")]
    if not mine:
        raise MissingPackageError(f"the account {server.user} is not in /etc/passwd")
    others = [line for line in lines if not line.startswith(f"{server.user}:")]
    return "\n".join([":".join([*mine[0][:5], str(server.home), shell]), *others, ""])


def _may_unshare() -> bool:
    words = [program("unshare", "util-linux"), "--mount", "true"]
    return subprocess.run(words, check=False, capture_output=True).returncode == 0


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
