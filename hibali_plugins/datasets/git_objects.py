"""Read objects of a git repository with limits, and without fetching any from a remote."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from hibali.errors import IncompleteError
from hibali.text import printable
from hibali_plugins.datasets.repository import Repository, git_output

_SECONDS = 300.0
# A partial clone would fetch missing objects, which can prompt or hang.
_OFFLINE = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1"}
_MOST_TREE = 4 * 1024 * 1024


def local_git(repository: Repository, *arguments: str | bytes, stdin: bytes = b"") -> bytes:
    """Return the output of a git command that contacts no remote. Raises `IncompleteError` if it fails."""
    return git_output(repository, *arguments, stdin=stdin, more=_OFFLINE, seconds=_SECONDS)


def read_objects(repository: Repository, names: Sequence[bytes], most: int) -> list[bytes | None]:
    """Return the contents of objects by id or `COMMIT:PATH`; None for a missing one or one of more than `most` bytes."""
    if not names:
        return []
    sizes = local_git(repository, "cat-file", "--batch-check=%(objectsize)", stdin=b"\n".join(names) + b"\n")
    answers = sizes.splitlines()
    if len(answers) != len(names):
        raise _damaged(repository)
    readable = {
        name: None
        for name, size in zip(names, answers, strict=True)
        if size.isascii() and size.isdigit() and int(size) <= most
    }
    contents = dict(zip(readable, _contents(repository, list(readable)), strict=True))
    return [contents.get(name) for name in names]


def _contents(repository: Repository, names: Sequence[bytes]) -> Iterator[bytes]:
    if not names:
        return
    output = local_git(repository, "cat-file", "--batch=%(objectsize)", stdin=b"\n".join(names) + b"\n")
    at = 0
    for _ in names:
        end = output.find(b"\n", at)
        size = output[at:end]
        if end < 0 or not size.isdigit():
            raise _damaged(repository)
        at = end + 1 + int(size) + 1
        yield output[end + 1 : at - 1]


def find_blobs(repository: Repository, commit: str, paths: Iterable[bytes]) -> dict[bytes, bytes]:
    """Return the ids of the files at these paths of a commit.

    Only trees on the way to a path are read, each once: a huge branch costs only what is asked for.
    """
    found: dict[bytes, bytes] = {}
    level: dict[bytes, list[tuple[list[bytes], bytes]]] = {
        f"{commit}^{{tree}}".encode(): [(path.split(b"/"), path) for path in paths]
    }
    id_bytes = len(commit) // 2
    while level:
        below: dict[bytes, list[tuple[list[bytes], bytes]]] = {}
        trees = read_objects(repository, list(level), _MOST_TREE)
        for (_, wanted), tree in zip(level.items(), trees, strict=True):
            entries = _entries(tree or b"", {parts[0] for parts, _ in wanted}, id_bytes)
            for parts, path in wanted:
                name = entries.get(parts[0])
                if name is None:
                    continue
                if len(parts) == 1:
                    found[path] = name
                else:
                    below.setdefault(name, []).append((parts[1:], path))
        level = below
    return found


def _entries(tree: bytes, wanted: Collection[bytes], id_bytes: int) -> Mapping[bytes, bytes]:
    """Return the hexadecimal ids of the wanted names in the content of a tree: `MODE NAME`, NUL, the id in bytes."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(tree):
        end = tree.find(b"\0", at)
        if end < 0:
            break
        name = tree[at:end].partition(b" ")[2]
        at = end + 1 + id_bytes
        if name in wanted:
            found[name] = tree[end + 1 : at].hex().encode()
    return found


def _damaged(repository: Repository) -> IncompleteError:
    root = printable(repository.root)
    return IncompleteError(
        "git-failed", "git gave an unexpected answer", subject=root, hint="To check the repository: git fsck"
    )
