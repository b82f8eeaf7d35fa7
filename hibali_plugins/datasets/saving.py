"""Save the names that a transfer changed in a dataset as one commit."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

from hibali.errors import HibaliError, IncompleteError, RefusedError, UsageError
from hibali.events import Listener, Noted
from hibali.files import read_regular
from hibali.ledger import ledger_folder, new_identifier
from hibali.retry import pause
from hibali.system_errors import reason_of
from hibali.text import counted, printable
from hibali_plugins.datasets.contents import Contents
from hibali_plugins.datasets.repository import (
    Repository,
    failure_text,
    git_output,
    identity,
    push_to_sibling,
    repository_around,
    require_annex,
    run_annex,
    run_annex_json,
    run_git,
    zero_ended,
)
from transfers.engine.request import SaveOptions
from transfers.history.journal import Receipt
from transfers.model.entry import Entry, Kind

_TRIES = 50  # attempts, because others may commit at the same time
_NOTHING = b"0" * 40
_NAMED = 3
_BACKEND = re.compile(rb"[A-Za-z0-9_]+")


def save(groups: dict[Repository, set[bytes]], outermost: Repository, message: str) -> list[str]:
    """Commit absolute names, each in its own repository, inner ones first; return the commits.

    A changed subdataset is recorded in its parents, up to `outermost`. Ignored names are skipped. Raises
    `IncompleteError` with the command to repeat.
    """
    made: list[str] = []
    changed = {each: set(names) for each, names in groups.items()}
    try:
        while changed:
            repository = max(changed, key=lambda each: len(each.root))
            commit = _Commit(repository, changed.pop(repository)).run(message)
            if commit is None:
                continue
            made.append(commit)
            parent = repository_around(repository.root.rpartition(b"/")[0])
            if parent is not None and _inside(repository.root, outermost.root) and _knows(parent, repository):
                changed.setdefault(parent, set()).add(repository.root)
    except HibaliError as problem:
        root = printable(outermost.root)
        raise IncompleteError(
            "not-saved",
            f"the files were transferred, but not committed: {problem.message}",
            subject=root,
            hint=f"{problem.hint + '; then r' if problem.hint else 'R'}un the same command again, or: datalad save -d {root}",
        ) from None
    return made


def _inside(path: bytes, root: bytes) -> bool:
    return path.startswith(root.rstrip(b"/") + b"/")


def _knows(parent: Repository, child: Repository) -> bool:
    """Return whether `parent` records `child` as a subdataset."""
    path = b":(top,literal)" + child.root[len(parent.root.rstrip(b"/")) + 1 :]
    return git_output(parent, "ls-files", "-s", "-z", "--", path).startswith(b"160000 ")


class _Commit:
    """One repository to commit. It uses an index of its own, so that what the user staged stays staged."""

    def __init__(self, repository: Repository, names: Iterable[bytes]) -> None:
        self._repository = repository
        start = len(repository.root.rstrip(b"/")) + 1
        self._names = sorted(name[start:] for name in names)

    def run(self, message: str) -> str | None:
        """Return the commit; None if these names have no changes."""
        names = self._without_ignored()
        if not names:
            return None
        if self._repository.annex:
            self._check_backends(names)
            self._annex([name for name in names if self._is_to_annex(name)])
        self._patiently(lambda: self._stage(names))
        staged = self._staged(set(names))
        commit: str | None = None
        for _ in range(_TRIES):
            done, commit = self._commit(staged, message)
            if done:
                break
            pause(secrets.randbelow(100) / 1000)
        else:
            raise IncompleteError("history-busy", "other processes keep committing to this branch")
        if commit is not None and self._is_adjusted():
            self._propagate()
        return commit

    def _is_to_annex(self, name: bytes) -> bool:
        """Return whether it is a file; `git annex add` would recreate a symlink with another time."""
        path = Path(os.fsdecode(self._repository.root + b"/" + name))
        return path.is_file() and not path.is_symlink()

    def _without_ignored(self) -> list[bytes]:
        """Return the names without those that git ignores, as `datalad save` does."""
        names_input = zero_ended(b"./" + name for name in self._names if not self._is_behind_link(name))
        finished = run_git(self._repository, "check-ignore", "-z", "--stdin", stdin=names_input)
        if finished.exit_code not in {0, 1}:
            raise IncompleteError("git-failed", failure_text("git check-ignore", finished))
        ignored = {name.removeprefix(b"./") for name in finished.stdout.split(b"\0")}
        return [name for name in self._names if name not in ignored]

    def _is_behind_link(self, name: bytes) -> bool:
        """Return whether a parent folder was replaced by a symlink: git fails for names below it."""
        folder = name.rpartition(b"/")[0]
        if not folder:
            return False
        path = Path(os.fsdecode(self._repository.root + b"/" + folder))
        return path.is_symlink() or self._is_behind_link(folder)

    def _check_backends(self, names: list[bytes]) -> None:
        """Raise `RefusedError` if .gitattributes set a backend with a path: git-annex would run it (S13)."""
        names_input = zero_ended(b"./" + name for name in names if not self._is_behind_link(name))
        attributes = git_output(
            self._repository, "check-attr", "-z", "--stdin", "annex.backend", stdin=names_input
        )
        # "unspecified", "unset" and "set" are values that git itself reports (git-check-attr(1), OUTPUT)
        for backend in set(attributes.split(b"\0")[2::3]):
            if not _BACKEND.fullmatch(backend):
                raise RefusedError(
                    "unsafe-backend",
                    f"a .gitattributes file sets annex.backend={printable(backend)}; git-annex would run a program with that path",
                    subject=printable(self._repository.root),
                    hint="Check the content and the author of .gitattributes.",
                )

    def _annex(self, names: list[bytes]) -> None:
        """Run `git annex add`: files that the repository's rules call large are annexed, others go to git."""
        finished, records = run_annex_json(
            self._repository, "add", "--batch", "-z", stdin=zero_ended(b"./" + name for name in names)
        )
        failed = [record for record in records if record.get("success") is False]
        if failed or finished.exit_code != 0:
            reasons = [f"{each.get('file')}: {each.get('error-messages')}" for each in islice(failed, _NAMED)]
            raise IncompleteError(
                "annex-failed", printable("; ".join(reasons)) or failure_text("git annex add", finished)
            )

    def _stage(self, names: list[bytes]) -> None:
        """Update the user's index, too, where these names would appear as changed otherwise."""
        git_output(
            self._repository,
            "update-index",
            "--add",
            "--remove",
            "--replace",
            "-z",
            "--stdin",
            stdin=zero_ended(name for name in names if not self._is_behind_link(name)),
        )

    def _staged(self, names: set[bytes]) -> bytes:
        """Return the index's lines for these names, as `update-index --index-info` reads them.

        The format is in git-ls-files(1), OUTPUT.
        """
        lines: list[bytes] = []
        for line in git_output(self._repository, "ls-files", "-s", "-z").split(b"\0"):
            head, _, name = line.partition(b"\t")
            if name in names and head.endswith(b" 0"):
                lines.append(line)
        known = {line.partition(b"\t")[2] for line in lines}
        deleted = [b"0 " + _NOTHING + b"\t" + name for name in names - known]
        return zero_ended([*deleted, *lines])

    def _commit(self, staged: bytes, message: str) -> tuple[bool, str | None]:
        """Return whether the branch has the changes, and the commit if one was needed.

        It returns (False, None) if another process committed first.
        """
        index = self._repository.git + b"/hibali-" + secrets.token_hex(8).encode()
        apart = {"GIT_INDEX_FILE": os.fsdecode(index)}
        try:
            head = run_git(self._repository, "rev-parse", "-q", "--verify", "HEAD").stdout.strip()
            git_output(self._repository, "read-tree", *([head] if head else ["--empty"]), more=apart)
            git_output(
                self._repository, "update-index", "--replace", "-z", "--index-info", stdin=staged, more=apart
            )
            tree = git_output(self._repository, "write-tree", more=apart).strip()
        finally:
            for left in (index, index + b".lock"):
                with contextlib.suppress(FileNotFoundError):
                    Path(os.fsdecode(left)).unlink()
        before = git_output(self._repository, "rev-parse", head + b"^{tree}").strip() if head else b""
        if tree == before:
            return True, None
        parents: list[str | bytes] = ["-p", head] if head else []
        arguments: list[str | bytes] = ["commit-tree", tree, *parents, "-F", "-"]
        message_bytes = message.encode("utf-8", "surrogateescape")
        commit = git_output(
            self._repository, *arguments, stdin=message_bytes, more=identity(self._repository)
        ).strip()
        subject = message.partition("\n")[0]
        moved = run_git(
            self._repository, "update-ref", "-m", f"commit: {subject}", "HEAD", commit, head or _NOTHING
        )
        if moved.exit_code == 0:
            return True, commit.decode("ascii")
        now = run_git(self._repository, "rev-parse", "-q", "--verify", "HEAD").stdout.strip()
        if now == head and b"cannot lock ref" not in moved.stderr:
            raise IncompleteError("git-failed", failure_text("git update-ref", moved))
        return False, None

    def _is_adjusted(self) -> bool:
        branch = run_git(self._repository, "symbolic-ref", "-q", "HEAD").stdout
        return branch.startswith(b"refs/heads/adjusted/")

    def _propagate(self) -> None:
        """Copy commits of an adjusted branch to its original branch, without contact to remotes."""
        nothing = [f"--no-{step}" for step in ("pull", "push", "commit", "content", "resolvemerge")]
        finished = run_annex(self._repository, "sync", *nothing)
        if finished.exit_code != 0:
            raise IncompleteError("annex-failed", failure_text("git annex sync", finished))

    def _patiently(self, act: Callable[[], None]) -> None:
        """Call `act` again while another process has locked the index."""
        for attempt in range(_TRIES):
            try:
                return act()
            except IncompleteError as problem:
                if "index.lock" not in problem.message or attempt == _TRIES - 1:
                    raise
                pause(secrets.randbelow(100) / 1000)
        return None


BEGIN = "=== hibali receipt ==="
END = "^^^ hibali receipt ^^^"


def commit_message(receipt: Receipt) -> str:
    """Return the message with the receipt.

    It does not use DataLad's markers: `datalad rerun` would search for a command between them.
    """
    done = [counted(receipt.files_moved, "file")]
    if receipt.files_linked:
        done.append(counted(receipt.files_linked, "link"))
    if receipt.files_deleted:
        done.append(counted(receipt.files_deleted, "deletion"))
    subject = f"[HIBALI] {receipt.operation} {printable(receipt.source)}: {', '.join(done)}"
    block = json.dumps(receipt.to_record(), indent=1, sort_keys=True)
    return f"{subject}\n\n{BEGIN}\n{block}\n{END}\n"


class Unsaved:
    """The absolute names that are changed and not committed; used only with the target locked."""

    def __init__(self, root_path: bytes) -> None:
        """Open a new file of names; `root_path` is the target, without symlinks."""
        self._folder = ledger_folder("unsaved", hashlib.sha256(root_path).hexdigest()[:32])
        self._failed: set[bytes] = set()
        self._left = sorted(self._folder.glob("*.names"))
        self._own = self._folder / f"{new_identifier()}.names"
        try:
            self._stream = self._own.open("xb", buffering=0)
        except OSError as problem:
            raise RefusedError(
                "ledger-unwritable",
                f"the ledger cannot be written: {reason_of(problem)}",
                subject=str(self._own),
                hint="Nothing was started. Free some space, or set HIBALI_STATE.",
            ) from None

    def begin(self, name: bytes) -> None:
        """Record a name before it is changed."""
        self._stream.write(name + b"\0")

    def fail(self, name: bytes) -> None:
        """Record that a name was not changed."""
        self._failed.add(name)

    def names(self) -> Iterator[bytes]:
        """Yield all changed names, some of them more than once."""
        for path in (*self._left, self._own):
            for name in read_names(path):
                if path != self._own or name not in self._failed:
                    yield name

    def settle(self) -> None:
        """Remove the records after the commit."""
        self._stream.close()
        for path in (*self._left, self._own):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file and keep its names for the next command; safe to call twice."""
        self._stream.close()
        if self._own.exists() and not self._own.stat().st_size:
            self._own.unlink()


def read_names(path: Path) -> list[bytes]:
    """Return the names in a file, without a last one that a crash cut short."""
    try:
        return read_regular(path, -1).split(b"\0")[:-1]
    except FileNotFoundError:
        return []


_OWN_NAMES = ".hibali/\n.hibali-" + "[0-9a-f]" * 32 + "\n"


class Changes:
    """The names that a command changes at its locked target."""

    def __init__(self, contents: Contents, on_event: Listener) -> None:
        self._contents = contents
        self._repository = contents.place.repository
        self._on_event = on_event
        self._unsaved: Unsaved | None = None

    def check(self, saving: SaveOptions) -> None:
        """Raise, before any change, if the commit would fail.

        Raises:
            UsageError: an unknown sibling.
            NotFoundError: git or git-annex is missing.
            RefusedError: git fails in this repository.
        """
        if not saving.save:
            return
        finished = run_git(self._repository, "remote")
        if finished.exit_code != 0:
            raise RefusedError(
                "unusable-dataset",
                f"git cannot commit in this dataset: {failure_text('git', finished)}",
                subject=printable(self._repository.root),
                hint="Correct the problem, or transfer without a commit: --no-save. Nothing was changed.",
            )
        if self._repository.annex:
            require_annex(self._repository)
        known = finished.stdout.decode("utf-8", "surrogateescape").splitlines()
        for sibling in saving.push_to:
            if sibling not in known:
                raise UsageError(
                    "no-such-sibling",
                    f"this dataset has no sibling {printable(sibling)}",
                    subject=printable(self._repository.root),
                    hint=f"Siblings: {printable(', '.join(sorted(known))) or 'none'}",
                )

    def open(self) -> None:
        """Start recording; the target is locked. Raises `RefusedError` if the ledger cannot be written."""
        self._hide_own_names()
        if self._unsaved is None:
            self._unsaved = Unsaved(self._contents.place.path)

    def _hide_own_names(self) -> None:
        """Exclude hibali's temporary files from git."""
        path = Path(os.fsdecode(self._repository.git)) / "info" / "exclude"
        with contextlib.suppress(OSError):  # if it is not writable, the commit fails with a message
            path.parent.mkdir(exist_ok=True)
            known = path.read_bytes() if path.exists() else b""
            if _OWN_NAMES.encode() not in known:
                with path.open("ab") as stream:
                    stream.write(
                        (b"\n" if known and not known.endswith(b"\n") else b"") + _OWN_NAMES.encode()
                    )

    def begin(self, entry: Entry) -> None:
        """Record an entry before it is committed or removed."""
        if self._unsaved is not None and entry.kind is not Kind.FOLDER:
            self._unsaved.begin(self._contents.absolute(entry.path))

    def fail(self, entry: Entry) -> None:
        """Record that an entry was not changed."""
        if self._unsaved is not None:
            self._unsaved.fail(self._contents.absolute(entry.path))

    def save(self, receipt: Receipt, saving: SaveOptions) -> None:
        """Commit all uncommitted names and push them, or leave both to the user. Raises `IncompleteError`."""
        if self._unsaved is None:
            return
        if saving.save:
            self._save(self._unsaved, receipt, saving)
        self._unsaved.settle()
        for sibling in saving.push_to:
            push_to_sibling(self._repository, sibling)
            self._note(f"pushed to {printable(sibling)}")

    def _save(self, unsaved: Unsaved, receipt: Receipt, saving: SaveOptions) -> None:
        groups: dict[Repository, set[bytes]] = {}
        apart = 0
        for name in (*unsaved.names(), *saving.also):
            repository = self._contents.around(name)
            if repository is None:
                apart += 1
            else:
                groups.setdefault(repository, set()).add(name)
        made = save(groups, self._repository, saving.message or commit_message(receipt))
        if apart:
            self._note(f"{counted(apart, 'file is', 'files are')} in nested git repositories and not saved")
        for commit in made:
            self._note(f"saved as {commit[:12]}")

    def _note(self, message: str) -> None:
        self._on_event(Noted(f"{printable(self._repository.root)}: {message}"))

    def close(self) -> None:
        """Keep uncommitted names for the next command."""
        if self._unsaved is not None:
            self._unsaved.close()
