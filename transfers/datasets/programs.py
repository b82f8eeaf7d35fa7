"""Running git, git-annex and datalad in a repository of this machine that the user works in."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hibali.account import account_names
from hibali.errors import IncompleteError, NotFoundError
from hibali.shell import Finished, run
from hibali.text import printable
from transfers.datasets.repository import Repository

_SECONDS = 20 * 86400.0  # content comes from anywhere, tapes included; poll(2) counts no longer
# Where the caller works, or what it was called by, is not where these are to work.
_ELSEWHERE = frozenset(
    {
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_PREFIX",
        "GIT_COMMON_DIR",
        "GIT_NAMESPACE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_QUARANTINE_PATH",
        "GIT_CEILING_DIRECTORIES",
    }
)


def run_git(
    repository: Repository, *words: str | bytes, stdin: bytes = b"", more: Mapping[str, str] | None = None
) -> Finished:
    """One command of git's own to its end; no hook and no watcher of the repository runs (S13)."""
    quiet = ["-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false"]
    argv: list[str | bytes] = ["git", "-C", repository.root, *quiet, *words]
    return run(argv, stdin=stdin, timeout=_SECONDS, environment={**_environment(), **(more or {})})


def ask_git(
    repository: Repository, *words: str | bytes, stdin: bytes = b"", more: Mapping[str, str] | None = None
) -> bytes:
    """What git answers; raises `IncompleteError` where it cannot."""
    finished = run_git(repository, *words, stdin=stdin, more=more)
    if finished.exit_code != 0:
        raise IncompleteError("git-failed", told_by("git", finished), about=printable(repository.root))
    return finished.stdout


def ask_annex(
    repository: Repository, *words: str, stdin: bytes = b""
) -> tuple[Finished, Iterator[dict[str, Any]]]:
    """How `git annex WORDS --json` ended, and the records it printed. Raises `NotFoundError` where there is no git-annex."""
    finished = run_annex(repository, *words, "--json", "--json-error-messages", stdin=stdin)
    return finished, _records(finished.stdout)


def run_annex(repository: Repository, *words: str, stdin: bytes = b"") -> Finished:
    """One command of git-annex to its end, or how its initialisation failed. Raises `NotFoundError` where there is none.

    In a clone that nobody initialised git-annex would do so by itself, enable the special remotes that the others marked
    for that, and run their programs: `externaltype=x/y` names a file of the work tree (S13).
    """
    environment = require_annex(repository)
    annex: list[str | bytes] = ["git", "-C", repository.root, "-c", "core.fsmonitor=false", "annex"]
    if run_git(repository, "config", "annex.uuid").exit_code != 0:
        begun = run([*annex, "init", "--quiet", "--no-autoenable"], timeout=_SECONDS, environment=environment)
        if begun.exit_code != 0:
            return begun
    return run([*annex, *words], stdin=stdin, timeout=_SECONDS, environment=environment)


def require_annex(repository: Repository) -> dict[str, str]:
    """The environment in which git finds git-annex. Raises `NotFoundError` where there is none."""
    environment = _environment()
    if shutil.which("git-annex", path=environment["PATH"]) is None:
        raise NotFoundError(
            "no-such-program",
            "git-annex is not installed",
            about=printable(repository.root),
            hint="pip install 'hibali[annex]'",
        )
    return environment


def push_to_sibling(repository: Repository, sibling: str) -> None:
    """`datalad push`; raises `IncompleteError` with what to type."""
    environment = _environment()
    program = shutil.which("datalad", path=environment["PATH"]) or "datalad"
    words: list[str | bytes] = [program, "push", "-d", repository.root, f"--to={sibling}"]
    finished = run(words, timeout=_SECONDS, environment=environment)
    if finished.exit_code != 0:
        root = printable(repository.root)
        raise IncompleteError(
            "not-pushed",
            f"all is saved, but not pushed to {printable(sibling)}: {told_by('datalad push', finished)}",
            about=root,
            hint=f"datalad push -d {root} --to {printable(sibling)}",
        )


def identity(repository: Repository) -> dict[str, str]:
    """Who commits where git was never told: the account and the host; nothing where it was."""
    if run_git(repository, "var", "GIT_COMMITTER_IDENT").exit_code == 0:
        return {}
    name, email = account_names()
    roles = ("AUTHOR", "COMMITTER")
    return {f"GIT_{role}_{what}": word for role in roles for what, word in (("NAME", name), ("EMAIL", email))}


def told_by(program: str, finished: Finished) -> str:
    """The end of what a program said, in one line."""
    said = printable(b" ".join((finished.stderr.strip() or finished.stdout.strip())[-500:].split()))
    return f"{program} ended with {finished.exit_code}: {said}"


def _environment() -> dict[str, str]:
    """The user's own, with the programs that were installed with us behind the others; nobody is asked anything."""
    kept = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    ours = str(Path(sys.executable).parent)
    path = os.pathsep.join(part for part in (kept.get("PATH", os.defpath), ours) if part)
    return {**kept, "PATH": path, "GIT_TERMINAL_PROMPT": "0", "DATALAD_UI_PROGRESSBAR": "none"}


def _records(lines: bytes) -> Iterator[dict[str, Any]]:
    for line in lines.splitlines():
        try:
            record = json.loads(line.decode("utf-8", "surrogateescape"))
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


def zero_ended(names: Iterable[bytes]) -> bytes:
    """Names as `-z` reads them."""
    return b"".join(name + b"\0" for name in names)
