"""Transfer data with hibali's commands between folders of a test and the site `there`."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.schemas import check_line
from tests.support.backends import PARTIAL, Backend
from tests.support.trees import Leaf, Tree, make_tree, read_tree, state_of

STORES = ("local", "ssh", "s3")
COUNTS = (
    "files",
    "bytes",
    "files_moved",
    "bytes_moved",
    "bytes_sent",
    "files_kept",
    "files_deleted",
    "files_failed",
)


def at_agents(*more: str) -> Any:
    """Return a fixture for tests that need any agent: a local site, and as heavy tests an ssh site and `more` stores.

    Both sites run the same agent, and one on this machine starts in a fraction of the time.
    """
    heavy = [pytest.param(word, marks=pytest.mark.heavy) for word in ("ssh", *more)]

    @pytest.fixture(params=["local", *heavy])
    def there(request: pytest.FixtureRequest, transfers_to: Callable[[str], Transfers]) -> Transfers:
        return transfers_to(request.param)

    return there


class Transfers:
    """hibali, the site `there` on a backend, and a local folder as the source."""

    def __init__(self, hibali: Any, place: Backend, folder: Path) -> None:
        self.hibali = hibali
        self.place = place
        self.folder = folder
        self.source = folder / "source"

    @property
    def root(self) -> Path:
        """Return the folder `data` there, if the backend is a filesystem."""
        return self.place.at("data")  # type: ignore[attr-defined]

    def make(self, tree: Tree) -> Path:
        """Create files in the source."""
        return make_tree(self.source, tree)

    def push(self, *words: str | bytes | Path, exit: int = 0) -> Any:  # noqa: A002 - as the fixture `hibali` has it
        """Run `hibali push SOURCE there:data --json`; check the exit code, and the schema of every line."""
        return self._move("push", self.source, "there:data", words, exit)

    def pull(self, into: Path, *words: str | bytes | Path, exit: int = 0) -> Any:  # noqa: A002 - as above
        """Run `hibali pull there:data INTO`."""
        return self._move("pull", "there:data", into, words, exit)

    def _move(self, word: str, source: Any, target: Any, words: Iterable[Any], code: int) -> Any:
        answer = self.hibali(word, source, target, "--json", *words, exit=code)
        assert answer.lines, str(answer)
        assert b"Traceback" not in answer.err, str(answer)
        check_line(answer.last)
        assert answer.last["exit"] == code, str(answer)
        return answer

    @contextlib.contextmanager
    def under(self, *prefix: str) -> Iterator[None]:
        """Run every hibali command in this context with these words before it."""
        command = self.hibali.command
        self.hibali.command = lambda *words: (*prefix, *command(*words))
        try:
            yield
        finally:
            self.hibali.command = command

    def verify(self, *words: str | bytes | Path, exit: int = 0) -> Any:  # noqa: A002 - as above
        """Run `hibali verify WORDS --json`; the default is `there:data`."""
        answer = self.hibali("verify", *(words or ("there:data",)), "--json", exit=exit)
        assert b"Traceback" not in answer.err, str(answer)
        return answer

    def there(self) -> dict[bytes, bytes]:
        """Return the content of every file below `data` there, read without hibali."""
        return self.place.files("data")

    def committed_files(self) -> dict[bytes, bytes]:
        """Return the content of files with final names only."""
        return {name: content for name, content in self.there().items() if not PARTIAL.fullmatch(name)}

    def tree_there(self) -> dict[bytes, Leaf]:
        """Return files, symlinks and empty folders."""
        return read_tree(self.root)

    def state_there(self) -> Any:
        """Return a state that changes with anything below `data`; `data` itself changes with a lock."""
        return self.place.versions("data") if self.place.word == "s3" else state_of(self.root)

    def whole_state(self) -> Any:
        """Return a state that changes with anything at the site."""
        return self.place.versions("") if self.place.word == "s3" else state_of(self.place.at(""))  # type: ignore[attr-defined]

    def check_no_own_files(self) -> None:
        """Assert that hibali left nothing except, in a bucket, its manifest."""
        ours = {name for name in self.place.names("data") if b".hibali" in name}
        if self.place.word == "s3":
            ours = {name for name in ours if not (b"/" + name).endswith(b"/.hibali/manifest.jsonl")}
        assert not ours, ours
        assert not self.place.unfinished("data")


def contents(tree: Tree) -> dict[bytes, bytes]:
    """Return the content of plain files only."""
    return {name: leaf for name, leaf in tree.items() if isinstance(leaf, bytes)}


def counts(answer: Any) -> dict[str, int]:
    """Return the counts of a receipt."""
    return {name: answer.last[name] for name in COUNTS}


def path_of(line: dict[str, Any]) -> bytes:
    """Return the name in a JSON line as bytes."""
    if "path_base64" in line:
        return base64.b64decode(line["path_base64"])
    return line["path"].encode()


def failed(answer: Any) -> dict[bytes, str]:
    """Return the error code of each name that failed."""
    return {path_of(line): line["code"] for line in answer.lines if line["kind"] == "failed"}


def actions(answer: Any) -> dict[bytes, str]:
    """Return the action of each name in a dry run's plan."""
    return {path_of(line): line["action"] for line in answer.lines if line["kind"] == "action"}
