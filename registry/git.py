"""Run git so that it executes nothing from a repository: no hooks, filters or helpers, few protocols (S13)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from hibali.errors import IncompleteError, RefusedError
from hibali.files import account_names
from hibali.subprocesses import CommandResult, run
from hibali.text import printable

_SECONDS = 600.0
_SETTINGS = {
    "safe.bareRepository": "explicit",
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.attributesFile": "/dev/null",
    "core.protectNTFS": "true",
    "core.quotePath": "false",
    "fetch.recurseSubmodules": "false",
    "submodule.recurse": "false",
    "transfer.fsckObjects": "true",
    "filter.annex.process": "",
    "filter.annex.clean": "cat",
    "filter.annex.smudge": "cat",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "commit.gpgSign": "false",
    "protocol.allow": "never",
    "protocol.https.allow": "always",
    "protocol.ssh.allow": "always",
    "protocol.file.allow": "always",
}


# Settings for git's server programs, because a repository of this machine may have settings that name programs to run.
# Settings on the command line outrank those of a repository and of files that it includes.
_SERVER_SETTINGS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.alternateRefsCommand": "true",
    "receive.denyCurrentBranch": "refuse",  # otherwise git checks files out there, with the repository's own filters
    "receive.autogc": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
}
# a partial clone would fetch from any host
_SERVER_ENVIRONMENT = (
    "GIT_ALLOW_PROTOCOL=none",
    "GIT_NO_LAZY_FETCH=1",
)
# git-fetch(1), GIT URLS: a path has a slash before its first colon
_LOCAL = re.compile(r"file://|[^:]*(?:/|$)")
_OF_REPOSITORY = frozenset({b"local", b"worktree"})
_HOOK_SETTING = re.compile(rb"hook\.", re.IGNORECASE)


class Git:
    """One repository, by its git folder; `work_tree` where it has one."""

    def __init__(self, folder: Path, work_tree: Path | None = None) -> None:
        self.folder = folder
        self._work_tree = work_tree

    def run(
        self,
        *arguments: str,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        own_settings: bool = False,
    ) -> CommandResult:
        """Run git and wait for it. With `own_settings`, it uses the settings of this account, which logins at other hosts need."""
        settings = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
        return run(
            ["git", *settings, *arguments],
            stdin=stdin,
            timeout=_SECONDS,
            environment={**_environment(own_settings=own_settings), **self._place(), **(environment or {})},
        )

    def check_output(
        self, *arguments: str, stdin: bytes = b"", environment: Mapping[str, str] | None = None
    ) -> bytes:
        """Run git and return its output; raises `IncompleteError` where it fails."""
        finished = self.run(*arguments, stdin=stdin, environment=environment)
        if finished.exit_code != 0:
            stderr = printable(finished.stderr.strip()[-500:])
            raise IncompleteError(
                "git-failed",
                f"git {arguments[0]} ended with {finished.exit_code}: {stderr}",
                subject=str(self.folder),
            )
        return finished.stdout

    def server_options(self, url: str, service: Literal["upload-pack", "receive-pack"]) -> list[str]:
        """Return the option of `git fetch` or `git push` that keeps a repository of this machine from running its own programs.

        git starts the server program itself there, as this account, and drops the settings that it was given (S13). Other
        hosts get no option: they run their own hooks as their own account. Raises `RefusedError`.
        """
        if not _LOCAL.match(url):
            return []
        self._refuse_hooks_of_settings(url)
        settings = [
            argument for name, value in _SERVER_SETTINGS.items() for argument in ("-c", f"{name}={value}")
        ]
        return [f"--{service}={' '.join(('env', *_SERVER_ENVIRONMENT, 'git', *settings, service))}"]

    def _refuse_hooks_of_settings(self, url: str) -> None:
        """Refuse hooks in settings: git 2.54 reads hooks from settings of any name, and no single setting disables them."""
        folder = url.removeprefix("file://")
        for place in (f"{folder}/.git", folder):
            argv = [
                "--git-dir",
                place,
                "config",
                "--name-only",
                "-z",
                "--show-scope",
                "--includes",
                "--list",
            ]
            configured = self.run(*argv).stdout.split(b"\0")
            pairs = zip(configured[::2], configured[1::2], strict=False)
            if any(scope in _OF_REPOSITORY and _HOOK_SETTING.match(name) for scope, name in pairs):
                raise RefusedError(
                    "repository-runs-programs",
                    "the settings of this repository name programs that git would run",
                    subject=printable(folder),
                    hint="Ask its maintainer to remove the settings hook.*, or use another repository.",
                )

    def _place(self) -> dict[str, str]:
        place = {"GIT_DIR": str(self.folder)}
        return {**place, "GIT_WORK_TREE": str(self._work_tree)} if self._work_tree else place


def _environment(*, own_settings: bool) -> dict[str, str]:
    """Return the environment of this process without variables that redirect git."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    for name in ("GIT_SSH_COMMAND", "GIT_SSH"):
        if own_settings and name in os.environ:
            inherited[name] = os.environ[name]
    quiet = {
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CONFIG_NOSYSTEM": "0" if own_settings else "1",
    }
    return {**inherited, **quiet, **({} if own_settings else {"GIT_CONFIG_GLOBAL": "/dev/null"})}


def read_blobs(repository: Git, blobs: list[tuple[bytes, str]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield names and contents, read by one call of git (git-cat-file(1), BATCH OUTPUT)."""
    output = repository.check_output(
        "cat-file", "--batch", stdin="".join(f"{digest}\n" for _, digest in blobs).encode()
    )
    at = 0
    for name, digest in blobs:
        end = output.index(b"\n", at)
        configured = output[at:end].split()
        if len(configured) != 3 or configured[0].decode() != digest or configured[1] != b"blob":
            raise IncompleteError(
                "git-failed", "an object of the repository is missing", subject=printable(name)
            )
        size = int(configured[2])
        yield name, output[end + 1 : end + 1 + size]
        at = end + 1 + size + 1


def committer_environment() -> dict[str, str]:
    """Return the variables that name the committer: as git is configured for this account, else account and host."""
    known = Git(Path(os.devnull)).run("config", "--get-regexp", r"^user\.(name|email)$", own_settings=True)
    configured = dict(
        line.split(" ", 1) for line in known.stdout.decode("utf-8", "replace").splitlines() if " " in line
    )
    account, address = account_names()
    name = os.environ.get("GIT_AUTHOR_NAME") or configured.get("user.name") or account
    email = os.environ.get("GIT_AUTHOR_EMAIL") or configured.get("user.email") or address
    return {
        "GIT_AUTHOR_NAME": name,
        "GIT_AUTHOR_EMAIL": email,
        "GIT_COMMITTER_NAME": name,
        "GIT_COMMITTER_EMAIL": email,
    }
