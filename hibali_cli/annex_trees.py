"""What git-annex asks about trees of files under their own names: those it exports, and those it imports."""

from __future__ import annotations

from pathlib import Path

from hibali.text import printable
from hibali_cli.annex_protocol import Asked
from hibali_cli.annex_talk import Answers, Talk, as_bytes
from transfers.entry import Entry


def supported(talk: Talk, asked: Asked) -> Answers:
    """Trees can be exported, and imported."""
    del talk
    yield (f"{asked.word}-SUCCESS",)


def name(talk: Talk, asked: Asked) -> Answers:
    """Which file of the tree the next request is about; not answered."""
    talk.name = asked.rest[0]
    yield from ()


def transfer(talk: Talk, asked: Asked) -> Answers:
    """A file of the exported tree goes or comes."""
    yield talk.carried(asked, lambda: talk.name)


def look(talk: Talk, asked: Asked) -> Answers:
    """Whether a file of a tree is there."""
    yield talk.looked(asked, lambda: talk.name)


def remove(talk: Talk, asked: Asked) -> Answers:
    """A file of the exported tree goes; an absent one is gone."""
    yield talk.removed(asked, lambda: talk.name)


def remove_folder(talk: Talk, asked: Asked) -> Answers:
    """A folder that the exported tree has no longer; it stays where it holds anything else."""
    folder = as_bytes(asked.rest[0].rstrip("/"))
    success, failure = (f"{asked.word}-SUCCESS",), (f"{asked.word}-FAILURE",)
    word, *reason = talk.tried(lambda: talk.contents().remove_folder(folder), success, failure)
    if reason:  # that answer has no room for it
        talk.inform(reason[0])
    yield (word,)


def rename(talk: Talk, asked: Asked) -> Answers:
    """A file of the exported tree gets another name; where the place cannot do that, git-annex sends it again."""
    key, other = asked.rest
    done: list[bool] = []
    answer = talk.tried(
        lambda: done.append(talk.contents().rename(as_bytes(talk.name), as_bytes(other))),
        ("RENAMEEXPORT-SUCCESS", key),
        ("RENAMEEXPORT-FAILURE", key),
    )
    if not done:  # that answer has no room for the reason
        talk.inform(answer[-1])
        yield answer[:-1]
    else:
        yield answer if done[0] else ("UNSUPPORTED-REQUEST",)


def list_files(talk: Talk, asked: Asked) -> Answers:
    """All files that can be imported, each with what differs when it changes."""
    found: list[Entry] = []
    success, failure = (f"{asked.word}-SUCCESS",), (f"{asked.word}-FAILURE",)
    answer = talk.tried(lambda: found.extend(talk.contents().files()), success, failure)
    for entry in found:
        if b"\n" in entry.path:
            talk.inform(f"{printable(entry.path)}: git-annex cannot be told of a name with a newline")
            continue
        yield "IMPORTABLECONTENT", str(entry.size), entry.path.decode("utf-8", "surrogateescape")
        yield "IMPORTABLECONTENTIDENTIFIER", entry.etag or f"{entry.size}-{entry.mtime_ns}-{entry.inode}"
    yield answer


def fetch(talk: Talk, asked: Asked) -> Answers:
    """A file that is imported; nobody knows its key yet."""
    file = Path(asked.rest[0])
    yield talk.tried(
        lambda: talk.contents().retrieve(as_bytes(talk.name), file, talk.progress),
        ("RETRIEVEIMPORT-SUCCESS",),
        ("RETRIEVEIMPORT-FAILURE",),
    )
