"""Read descriptors from a git repository without a checkout: `git+https://HOST/PATH[@REF][#FOLDER]` (S13)."""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Iterator

from hibali.documents import MAXIMUM_BYTES
from hibali.errors import NotFoundError, TryLaterError, UsageError
from hibali.text import printable
from registry.git import Git, read_blobs
from registry.sources.base import MOST, Access, Candidate

_PLACE = re.compile(
    r"(?P<url>(?:https|ssh|file)://[^@#\s]*(?:@[^@#/\s]+(?:[:/][^@#\s]*))?)(?:@(?P<ref>[^@#\s]+))?(?:#(?P<folder>.*))?"
)
_MOST_BYTES = 256 * 1024 * 1024


def find_candidates(place: str, access: Access) -> Iterator[Candidate]:
    """See `Source`."""
    found = _PLACE.fullmatch(place.removeprefix("git+"))
    if found is None:
        raise UsageError(
            "bad-git-url",
            "the URL of a git repository is git+https://HOST/PATH, git+ssh://HOST/PATH or git+file:///PATH, with optional @REF and #FOLDER",
            subject=printable(place),
        )
    url, ref, folder = found["url"], found["ref"] or "HEAD", found["folder"] or ""
    partial = access.scratch / secrets.token_hex(16)
    try:
        repository = Git(partial)
        repository.check_output("init", "-q", "--bare", "--template=", str(partial))
        _fetch(repository, url, ref)
        yield from _read(repository, f"git+{url}", folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _fetch(repository: Git, url: str, ref: str) -> None:
    server = repository.server_options(url, "upload-pack")
    arguments = [
        "fetch",
        "-q",
        "--depth",
        "1",
        "--no-tags",
        "--no-write-fetch-head",
        *server,
        "--end-of-options",
    ]
    fetched = repository.run(*arguments, url, f"{ref}:refs/hibali/source", own_settings=True)
    if fetched.exit_code:
        stderr = printable(fetched.stderr.strip()[-400:])
        if b"couldn't find remote ref" in fetched.stderr:
            raise NotFoundError(
                "no-such-ref", "the repository has no such branch or tag", subject=printable(ref)
            )
        raise TryLaterError(
            "git-unreachable", f"the repository cannot be fetched: {stderr}", subject=printable(url)
        )


def _read(repository: Git, subject: str, folder: str) -> Iterator[Candidate]:
    listed = repository.check_output("ls-tree", "-r", "-z", "-l", "refs/hibali/source")
    blobs: list[tuple[bytes, str]] = []
    total = 0
    for line in filter(None, listed.split(b"\0")):
        record, _, name = line.partition(b"\t")
        mode, _, digest, size = record.split()
        wanted = name.endswith(b".json") and name.startswith(
            folder.strip("/").encode() + b"/" if folder else b""
        )
        if wanted and mode.startswith(b"100") and int(size) <= MAXIMUM_BYTES:
            total += int(size)
            blobs.append((name, digest.decode()))
    if len(blobs) > MOST or total > _MOST_BYTES:
        raise UsageError(
            "too-many", "too many or too large JSON files", subject=subject, hint="Name a folder: ...#FOLDER"
        )
    for name, raw in read_blobs(repository, blobs):
        candidate = Candidate(f"{subject}: {printable(name)}", raw)
        if candidate.is_descriptor:
            yield candidate
