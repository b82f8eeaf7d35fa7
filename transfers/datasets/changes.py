"""What one call changes in a dataset, from before it lands until it is saved."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from hibali.errors import RefusedError, UsageError
from hibali.events import Listener, Noted
from hibali.text import printable
from transfers.datasets.contents import Contents
from transfers.datasets.message import commit_message
from transfers.datasets.programs import push_to_sibling, require_annex, run_git, told_by
from transfers.datasets.repository import Repository
from transfers.datasets.saving import save
from transfers.datasets.unsaved import Unsaved
from transfers.entry import Entry, Kind
from transfers.receipt import Receipt
from transfers.request import Saving

_OWN_NAMES = ".hibali/\n.hibali-" + "[0-9a-f]" * 32 + "\n"


class Changes:
    """The names that a call changes at its target, once that is locked."""

    def __init__(self, contents: Contents, tell: Listener) -> None:
        self._contents = contents
        self._repository = contents.place.repository
        self._tell = tell
        self._unsaved: Unsaved | None = None

    def check(self, saving: Saving) -> None:
        """Raise, before anything is changed, what would keep it from being saved.

        `UsageError` for a sibling that is none, `NotFoundError` without git or git-annex, `RefusedError` where git will not work.
        """
        if not saving.save:
            return
        told = run_git(self._repository, "remote")
        if told.exit_code != 0:
            raise RefusedError(
                "unusable-dataset",
                f"what lands there could not be saved: {told_by('git', told)}",
                about=printable(self._repository.root),
                hint="Put that right, or leave the commit to yourself: --no-save. Nothing was changed.",
            )
        if self._repository.annex:
            require_annex(self._repository)
        known = told.stdout.decode("utf-8", "surrogateescape").splitlines()
        for sibling in saving.push_to:
            if sibling not in known:
                raise UsageError(
                    "no-such-sibling",
                    f"this dataset has no sibling {printable(sibling)}",
                    about=printable(self._repository.root),
                    hint=f"Siblings: {printable(', '.join(sorted(known))) or 'none'}",
                )

    def open(self) -> None:
        """The target is locked. Raises `RefusedError` where nothing can be noted."""
        self._hide_own_names()
        if self._unsaved is None:
            self._unsaved = Unsaved(self._contents.place.path)

    def _hide_own_names(self) -> None:
        """What stands beside the data while a call is at work, or was killed, is never anybody's change."""
        path = Path(os.fsdecode(self._repository.git)) / "info" / "exclude"
        with contextlib.suppress(OSError):  # who cannot write there cannot save either, and is told then
            path.parent.mkdir(exist_ok=True)
            known = path.read_bytes() if path.exists() else b""
            if _OWN_NAMES.encode() not in known:
                with path.open("ab") as stream:
                    stream.write(
                        (b"\n" if known and not known.endswith(b"\n") else b"") + _OWN_NAMES.encode()
                    )

    def begin(self, entry: Entry) -> None:
        """An entry is about to land or to go."""
        if self._unsaved is not None and entry.kind is not Kind.FOLDER:
            self._unsaved.begin(self._contents.absolute(entry.path))

    def fail(self, entry: Entry) -> None:
        """It did not."""
        if self._unsaved is not None:
            self._unsaved.fail(self._contents.absolute(entry.path))

    def save(self, receipt: Receipt, saving: Saving) -> None:
        """Commit all that is in no commit yet, and push that on; or leave it to the user. Raises `IncompleteError`."""
        if self._unsaved is None:
            return
        if saving.save:
            self._save(self._unsaved, receipt, saving)
        self._unsaved.settle()
        for sibling in saving.push_to:
            push_to_sibling(self._repository, sibling)
            self._say(f"pushed to {printable(sibling)}")

    def _save(self, unsaved: Unsaved, receipt: Receipt, saving: Saving) -> None:
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
            self._say(f"{apart} names lie in git repositories of their own and are not saved")
        for commit in made:
            self._say(f"saved as {commit[:12]}")

    def _say(self, words: str) -> None:
        self._tell(Noted(f"{printable(self._repository.root)}: {words}"))

    def close(self) -> None:
        """Leave the rest to the next call."""
        if self._unsaved is not None:
            self._unsaved.close()
