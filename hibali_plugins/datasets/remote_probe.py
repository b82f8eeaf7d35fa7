"""Test git remotes and special remotes of a dataset with git and git-annex, without prompts and within a deadline.

git-annex is asked for the presence of single contents, which uses its own credentials and fetches nothing. It gets a
configuration that keeps it from contacting other remotes and from changing the repository.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from urllib.parse import unquote, urlsplit

from hibali.annex_key import key_of_name
from hibali.errors import AccessError, HibaliError, IncompleteError
from hibali.files import private_folder, state_folder, write_atomic
from hibali.ssh.explain import explain_ssh
from hibali.ssh.gsi import without_debug
from hibali.subprocesses import CommandResult, run, without_secrets
from hibali.text import counted, printable
from hibali_plugins.datasets.repository import Repository, git_environment, run_git
from hibali_plugins.datasets.sources import Config, Outcome, Source

_MOST_OUTPUT = 4 * 1024 * 1024
_EMPTY = b"SHA256E-s0--e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # for remotes without contents
_LONGEST = 300  # characters of a program's message
_DESKTOP = ("DISPLAY", "WAYLAND_DISPLAY", "GPG_TTY")
_OTHER_SSH = frozenset({"plink", "tortoiseplink", "putty", "simple"})
_EXTERNAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_SCP = re.compile(r"(?:[^@:/\[\]]+@)?([^@:/\[\]]+):(?!//)")
_PROGRAMS = {
    "rsync": "rsync",
    "bup": "bup",
    "borg": "borg",
    "ddar": "ddar",
    "gcrypt": "git-remote-gcrypt",
    "glacier": "glacier",
    "tahoe": "tahoe",
    "adb": "adb",
    "rclone": "rclone",
}
_PACKAGES = {
    "ora": "pip install datalad",
    "ria": "pip install datalad",
    "datalad": "pip install datalad",
    "datalad-archives": "pip install datalad",
    "uncurl": "pip install datalad-next",
    "osf": "pip install datalad-osf",
    "globus": "pip install git-annex-remote-globus",
    "rclone": "apt install git-annex-remote-rclone",
    "hibali": "pip install hibali",
}
_VARIABLES = {
    "webdav": ("WEBDAV_USERNAME", "WEBDAV_PASSWORD"),
    "S3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    "glacier": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
}
_NO_GPG = frozenset({"none", "shared"})  # the kinds of encryption without a key of gpg
# git-annex cannot give gpg options for its own keys; an agent of a desktop would ask for their passphrases in a window.
_GPG_WITHOUT_PROMPT = b'#!/bin/sh\nexec "$HIBALI_GPG" --pinentry-mode error "$@"\n'
_SSH = re.compile(
    r"Host key verification failed|REMOTE HOST IDENTIFICATION|Permission denied[ ,(]|no mutual signature"
)
_DENIED = re.compile(
    r"\b40[13]\b|unauthorized|forbidden|authentication failed|could not read (?:username|password)"
    r"|terminal prompts disabled|credentials|invalidaccesskeyid|signaturedoesnotmatch|accessdenied|access denied"
    r"|decryption failed|no pinentry|no secret key",
    re.IGNORECASE,
)
_UNREACHABLE = re.compile(
    r"could not resolve|name or service not known|temporary failure in name resolution|getaddrinfo|connection refused"
    r"|timed out|connectionfailure|connectiontimeout|no route to host|network is unreachable|connection reset"
    r"|connection closed|couldn't connect|failed to connect",
    re.IGNORECASE,
)
_NO_REASON = re.compile(
    r"Please make sure you have|and the repository exists|fatal: Could not read from remote|rsync error:"
    r"|rsync: connection unexpectedly closed|\(recording state|Cannot run git-annex-remote|  \(?Unable to"
)
_GONE = re.compile(
    r"not found|does not exist|does not appear to be a git repository|no such (?:file|bucket)|nosuchbucket|\b404\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class RemoteProbe:
    """The tests of one repository's remotes; each may take `seconds`."""

    repository: Repository
    config: Config
    sources: Sequence[Source]
    seconds: float
    environment: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "environment", self._quiet_environment())

    def test(self, source: Source, outcome: Outcome) -> None:
        """Test a source that is enabled here, and note which of its samples are absent. Raises what fails."""
        deadline = time.monotonic() + self.seconds
        self.check_names(source)
        self.check_programs(source)
        folder = source.own.get("annex-directory")
        if folder is not None and not Path(folder).is_dir():
            raise self._gone(source, "the folder does not exist, or its disk is not mounted")
        if source.type == "git":
            self._list_remote(source, deadline)
        elif source.type == "rsync":
            self._list_folder(source, deadline)
        usable = source.uuid and source.own.get("annex-ignore") != "true" and self.config.get("annex.uuid")
        if usable and self.has_annex:
            self._look_for_samples(source, outcome, deadline)

    @property
    def has_annex(self) -> bool:
        """Whether git-annex is installed."""
        return shutil.which("git-annex", path=self.environment["PATH"]) is not None

    def check_names(self, source: Source) -> None:
        """Raise `IncompleteError` for names that would be options or paths of programs."""
        external = self._external(source)
        host = _host_of(source.url)
        if (external and not _EXTERNAL.fullmatch(external)) or host.startswith("-"):
            raise IncompleteError(
                "unsafe-remote",
                "its settings name a program or an option in place of a type or host; it was not tested",
                subject=source.name,
                hint=f"Check who set it: {self._git('config', '--list', '--show-origin')}",
            )

    def check_programs(self, source: Source) -> None:
        """Raise `IncompleteError` if a program that the source needs is not installed."""
        external = self._external(source)
        helper = re.match(r"([a-z0-9+.-]+)::", source.own.get("url", ""))
        needed = [f"git-annex-remote-{external}" if external else _PROGRAMS.get(source.type, "")]
        needed += [f"git-remote-{helper[1]}"] if helper is not None else []
        needed += [self._gpg] if self._uses_gpg(source) else []
        path = os.pathsep.join((self.environment["PATH"], "/usr/lib/git-core", "/usr/libexec/git-core"))
        for program in filter(None, needed):
            if shutil.which(program, path=path) is None:
                package = _PACKAGES.get(external, "")
                raise IncompleteError(
                    "special-remote-not-installed",
                    f"the program {program}, which this source needs, is not installed",
                    subject=source.name,
                    hint=package or f"Install it where this finds it: command -v {program}",
                )

    def log_in_over_ssh(self, url: str) -> None:
        """Log in to the host of an sftp URL without a prompt. Raises `AccessError` and what `explain_ssh` returns."""
        parts = urlsplit(url)
        host, user = parts.hostname or "", unquote(parts.username or "")
        options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={self._whole_seconds}"]
        options += ["-p", str(parts.port)] if parts.port else []
        options += ["-l", user] if user else []
        argv = ["ssh", *options, "-s", "--", host, "sftp"]
        finished = run(argv, timeout=self.seconds, environment=self.environment, most=_MOST_OUTPUT)
        if finished.exit_code == 255:
            raise self._of_ssh(finished, url)

    def _list_remote(self, source: Source, deadline: float) -> None:
        finished = run_git(
            self.repository,
            "ls-remote",
            "--",
            source.name,
            "HEAD",
            more=self.environment,
            seconds=_left(deadline),
        )
        if finished.exit_code != 0:
            raise self._explain(source, finished, self._git("ls-remote", "--", source.name, "HEAD"))

    def _list_folder(self, source: Source, deadline: float) -> None:
        """List the folder of an rsync remote: git-annex takes one that cannot be reached for one without the content."""
        url = source.own.get("annex-rsyncurl") or source.settings.get("rsyncurl", "")
        transport = source.own.get("annex-rsync-transport", "ssh")
        shell = f"{transport} -oBatchMode=yes -oConnectTimeout={self._whole_seconds}"
        argv = ["rsync", "--list-only", "--dirs", "-e", shell, "--", url.rstrip("/") + "/"]
        finished = run(argv, timeout=_left(deadline), environment=self.environment, most=_MOST_OUTPUT)
        if finished.exit_code != 0:
            raise self._explain(source, finished, f"rsync --list-only -- {quoted(url)}")

    def _look_for_samples(self, source: Source, outcome: Outcome, deadline: float) -> None:
        environment = {**self.environment, **self._annex_settings(source)}
        argv: list[str | bytes] = ["git", "-C", self.repository.root, "-c", "core.fsmonitor=false", "annex"]
        for name in [sample.key.name for sample in source.samples] or [_EMPTY]:
            key = key_of_name(name)
            finished = run(
                [*argv, "checkpresentkey", "--", key, source.name],
                timeout=_left(deadline),
                environment=environment,
                most=_MOST_OUTPUT,
            )
            if finished.exit_code == 1 and not finished.stderr.strip():
                outcome.absent |= {name} - {_EMPTY}
            elif finished.exit_code != 0:
                words = ("annex", "checkpresentkey", "--", os.fsdecode(key), source.name)
                raise self._explain(source, finished, self._git(*words))
        if outcome.absent:
            outcome.partial = len(outcome.absent) < len(source.samples)
            raise IncompleteError(
                "copies-missing",
                f"{counted(len(outcome.absent), 'content')} of {len(source.samples)} that were tested are not there,"
                " although git-annex recorded them",
                subject=source.name,
                hint=f"To correct the records: {self._git('annex', 'fsck', '--fast', f'--from={source.name}')}",
            )

    def _explain(self, source: Source, finished: CommandResult, command: str) -> HibaliError:
        """Return the problem for what git, git-annex or rsync printed; `command` shows all of it."""
        text = finished.stderr.decode("utf-8", "replace") or finished.stdout.decode("utf-8", "replace")
        message = _message(text)
        if _SSH.search(text):
            return self._of_ssh(finished, source.url)
        if "allowed-ip-addresses" in text:
            return private_address(source.name, _host_of(source.url) or "ADDRESS")
        if "verifyremote" in text:
            return IncompleteError(
                "remote-not-verified",
                "git-annex does not use it until you have checked its settings",
                subject=source.name,
                hint=f"If you trust it: {self._git('annex', 'verifyremote', source.name)}",
            )
        if _DENIED.search(text):
            return AccessError(
                "credentials-refused",
                f"it refused the stored credentials, or there are none: {message}",
                subject=source.name,
                hint=self._renewal(source),
            )
        if _UNREACHABLE.search(text):
            return IncompleteError(
                "unreachable",
                f"it cannot be reached: {message}",
                subject=source.name,
                hint=f"If it is gone for good: {self._git('annex', 'dead', source.name)}",
            )
        if _GONE.search(text):
            return self._gone(source, message)
        return IncompleteError(
            "source-failed",
            f"it failed: {message}",
            subject=source.name,
            hint=f"To see all messages: {command}",
        )

    def _gone(self, source: Source, message: str) -> IncompleteError:
        return IncompleteError(
            "source-gone",
            f"there is nothing at its address: {message}",
            subject=source.name,
            hint=f"If it was moved: {self._git('remote', 'set-url', source.name)} URL"
            if source.type == "git"
            else f"If it is gone for good: {self._git('annex', 'dead', source.name)}",
        )

    def _renewal(self, source: Source) -> str:
        """Return the command that stores new credentials of a source, without a secret on the command line."""
        enable = self._git("annex", "enableremote", source.name)
        if source.type == "git":
            return f"To type the new password once, for git's credential helper: {self._git('ls-remote', source.name)}"
        if self._uses_gpg(source):
            return f"To type the passphrase once, for gpg's agent: {self._git('annex', 'fsck', '--fast', f'--from={source.name}')}"
        if source.type in _VARIABLES:
            user, password = _VARIABLES[source.type]
            return (
                f"To store new ones: read -rp 'User: ' {user} && read -rsp 'Password: ' {password}"
                f" && export {user} {password} && {enable}"
            )
        return f"To store new ones: {enable}"

    def _of_ssh(self, finished: CommandResult, url: str) -> HibaliError:
        user = unquote(urlsplit(url).username or "") if "://" in url else url.rpartition("@")[0]
        host = f"{user}@{_host_of(url)}" if user else _host_of(url)
        port = urlsplit(url).port if "://" in url else None
        command = ["ssh", "-p", str(port)] if port else ["ssh"]
        found = explain_ssh(finished.stderr, command, host)
        if found.code == "unreachable":
            found = IncompleteError(found.code, found.message, subject=host, hint=found.hint)
        return found

    def _annex_settings(self, source: Source) -> dict[str, str]:
        """Return the environment in which git-annex uses one remote only, asks nothing and changes nothing."""
        name = f"remote.{source.name}"
        ssh_options = f"-oBatchMode=yes -oConnectTimeout={self._whole_seconds}"
        settings = [
            ("annex.merge-annex-branches", "false"),
            ("annex.autoupgraderepository", "false"),
            ("annex.sshcaching", "false"),  # a shared connection would outlive the test
            (f"{name}.annex-ssh-options", f"{source.own.get('annex-ssh-options', '')} {ssh_options}".strip()),
        ]
        for other in self.sources:
            if other.name != source.name and "annex-externaltype" in other.own:
                settings.append((f"remote.{other.name}.annex-externaltype", "readonly"))  # starts no program
            elif other.name != source.name and other.type == "git":
                settings.append((f"remote.{other.name}.annex-ignore", "true"))
        if self._uses_gpg(source):
            settings.append(("gpg.program", str(_gpg_without_prompt())))
        first = int(os.environ.get("GIT_CONFIG_COUNT") or 0)
        found = {"GIT_CONFIG_COUNT": str(first + len(settings))}
        for number, (key, value) in enumerate(settings, first):
            found |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        return found

    def _quiet_environment(self) -> dict[str, str]:
        """Return an environment in which git, ssh, gpg and credential helpers fail instead of asking."""
        inherited = {name: value for name, value in git_environment().items() if name not in _DESKTOP}
        quiet = {
            "LC_ALL": "C.UTF-8",
            "LANGUAGE": "",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "",
            "SSH_ASKPASS": "",
            "SSH_ASKPASS_REQUIRE": "never",
            "GCM_INTERACTIVE": "never",
            "HIBALI_GPG": self._gpg,
        }
        program = inherited.get("GIT_SSH_COMMAND") or self.config.get("core.sshcommand")
        if not program:
            program = shlex.quote(inherited.get("GIT_SSH") or "ssh")
        variant = inherited.get("GIT_SSH_VARIANT") or self.config.get("ssh.variant")
        first = program.split(" ")[0].strip("'\"")
        if not {variant, PurePath(first).stem.lower()} & _OTHER_SSH:
            program += f" -o BatchMode=yes -o ConnectTimeout={self._whole_seconds}"
        return {**inherited, **quiet, "GIT_SSH_COMMAND": program}

    @property
    def _whole_seconds(self) -> int:
        return max(1, int(self.seconds))

    def _external(self, source: Source) -> str:
        if source.type != "external":
            return ""
        return source.own.get("annex-externaltype") or source.settings.get("externaltype", "")

    @property
    def _gpg(self) -> str:
        return self.config.get("gpg.program") or "gpg"

    @staticmethod
    def _uses_gpg(source: Source) -> bool:
        return source.settings.get("encryption", "none") not in _NO_GPG

    def _git(self, *words: str) -> str:
        return git_line(self.repository, *words)


def _gpg_without_prompt() -> Path:
    """Return a program that runs gpg, and fails where gpg would ask for a passphrase."""
    program = private_folder(state_folder() / "programs") / "gpg-without-prompt"
    if not program.exists() or program.read_bytes() != _GPG_WITHOUT_PROMPT:
        write_atomic(program, _GPG_WITHOUT_PROMPT, mode=0o700)
    return program


def git_line(repository: Repository, *words: str) -> str:
    """Return a git command for people, quoted for a shell; a name that cannot be shown as it is becomes NAME."""
    root = repository.root.decode("utf-8", "surrogateescape")
    return " ".join(["git", "-C", quoted(root), *map(quoted, words)])


def quoted(word: str) -> str:
    """Return a word for a command line that can be pasted."""
    return shlex.quote(word) if printable(word) == word and "\\" not in word else "NAME"


def private_address(name: str, address: str) -> IncompleteError:
    """Return the problem of a server in a private network, which git-annex refuses by default."""
    return IncompleteError(
        "private-address",
        "git-annex fetches nothing from an address in a private network unless that is allowed",
        subject=name,
        hint=f"If you trust the dataset: git config --global annex.security.allowed-ip-addresses {quoted(address)}",
    )


def _host_of(url: str) -> str:
    """Return the host of a URL, or of HOST:PATH; "" for a folder."""
    if "://" in url:
        try:
            return urlsplit(url).hostname or ""
        except ValueError:
            return ""
    matched = _SCP.match(url)
    return matched[1] if matched is not None else ""


def _message(text: str) -> str:
    """Return the first lines of a program's output that give a reason, in one line without secrets."""
    lines = [line.strip() for line in without_debug(text).splitlines() if line.strip()]
    told = [line for line in lines if not _NO_REASON.match(line)] or lines
    return printable(without_secrets("; ".join(told[:2])))[:_LONGEST]


def _left(deadline: float) -> float:
    return max(0.1, deadline - time.monotonic())
