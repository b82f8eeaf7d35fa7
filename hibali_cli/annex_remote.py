"""`git-annex-remote-hibali`: hibali as git-annex's special remote, one request at a time on stdin, its answer on stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final, NoReturn

from hibali import __version__
from hibali.annex_key import place_of
from hibali.errors import Exit, HibaliError
from hibali.text import printable
from hibali_cli import annex_trees
from hibali_cli.annex_protocol import Asked
from hibali_cli.annex_talk import LOCATION, Answers, Handler, Talk
from hibali_cli.interruption import listen_for_interruption

_USAGE = """\
git-annex-remote-hibali is started by git-annex, for contents at a site of hibali:

    git annex initremote NAME type=external externaltype=hibali encryption=none location=SITE:PATH

SITE is one of `hibali sites list`. See docs/git-annex.md.
"""
_COSTS = {"local": 100, "ssh": 175}  # as git-annex calls cheap and semi-expensive; others are expensive
_EXPENSIVE = 200


def _extensions(talk: Talk, asked: Asked) -> Answers:
    """What both sides may use beyond the plain protocol."""
    talk.informs = "INFO" in asked.rest[0].split()
    yield ("EXTENSIONS", "INFO") if talk.informs else ("EXTENSIONS",)


def _settings(talk: Talk, asked: Asked) -> Answers:
    """What `git annex initremote` takes."""
    del talk, asked
    yield "CONFIG", LOCATION, "where the contents lie, as SITE:PATH of hibali's own configuration (required)"
    yield ("CONFIGEND",)


def _initialise(talk: Talk, asked: Asked) -> Answers:
    """The place is made, or reached where it is there."""
    yield talk.tried(
        lambda: talk.contents().make_place(), (f"{asked.word}-SUCCESS",), (f"{asked.word}-FAILURE",)
    )


def _prepare(talk: Talk, asked: Asked) -> Answers:
    """The configuration is looked at; nobody logs in anywhere before there is something to do."""
    yield talk.tried(talk.contents, (f"{asked.word}-SUCCESS",), (f"{asked.word}-FAILURE",))


def _cost(talk: Talk, asked: Asked) -> Answers:
    """By the kind of the site."""
    del asked
    yield "COST", str(_COSTS.get(_kind(talk), _EXPENSIVE))


def _availability(talk: Talk, asked: Asked) -> Answers:
    """A folder of this machine is there only for this one."""
    del asked
    yield "AVAILABILITY", "LOCAL" if _kind(talk) == "local" else "GLOBAL"


def _kind(talk: Talk) -> str:
    try:
        return talk.place().site.kind
    except HibaliError:
        return ""


def _info(talk: Talk, asked: Asked) -> Answers:
    """What `git annex info REMOTE` shows."""
    del asked
    value = talk.value(LOCATION)
    yield "INFOFIELD", LOCATION
    yield "INFOVALUE", value
    yield ("INFOEND",)


def _transfer(talk: Talk, asked: Asked) -> Answers:
    """A content goes or comes, by its key."""
    yield talk.carried(asked, lambda: place_of(asked.rest[1]))


def _look(talk: Talk, asked: Asked) -> Answers:
    """Whether a content is there."""
    yield talk.looked(asked, lambda: place_of(asked.rest[0]))


def _remove(talk: Talk, asked: Asked) -> Answers:
    """A content goes; an absent one is gone."""
    yield talk.removed(asked, lambda: place_of(asked.rest[0]))


def _find(talk: Talk, asked: Asked) -> Answers:
    """Where a content lies, in words that hibali understands."""
    try:
        place = talk.place().text.rstrip("/")
        yield "WHEREIS-SUCCESS", printable(f"{place}/{place_of(asked.rest[0])}")
    except HibaliError:
        yield ("WHEREIS-FAILURE",)


_HANDLERS: Final[Mapping[str, Handler]] = {
    "EXTENSIONS": _extensions,
    "LISTCONFIGS": _settings,
    "INITREMOTE": _initialise,
    "PREPARE": _prepare,
    "GETCOST": _cost,
    "GETAVAILABILITY": _availability,
    "GETINFO": _info,
    "TRANSFER": _transfer,
    "CHECKPRESENT": _look,
    "REMOVE": _remove,
    "WHEREIS": _find,
    "EXPORTSUPPORTED": annex_trees.supported,
    "EXPORT": annex_trees.name,
    "TRANSFEREXPORT": annex_trees.transfer,
    "CHECKPRESENTEXPORT": annex_trees.look,
    "REMOVEEXPORT": annex_trees.remove,
    "REMOVEEXPORTDIRECTORY": annex_trees.remove_folder,
    "RENAMEEXPORT": annex_trees.rename,
    "IMPORTSUPPORTED": annex_trees.supported,
    "LISTIMPORTABLECONTENTS": annex_trees.list_files,
    "IMPORT": annex_trees.name,
    "RETRIEVEIMPORT": annex_trees.fetch,
    "CHECKPRESENTIMPORT": annex_trees.look,
}


def main() -> NoReturn:
    """The console entry. Whatever else writes to stdout in this process or its children ends up on stderr."""
    if sys.argv[1:]:
        sys.stdout.write(f"hibali {__version__}\n" if sys.argv[1:] == ["--version"] else _USAGE)
        sys.exit(0 if sys.argv[1] in {"--help", "--version"} else 2)
    try:
        listen_for_interruption()
        requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        sys.exit(Talk(requests, answers).run(_HANDLERS))
    except KeyboardInterrupt as interrupted:
        sys.exit(int(getattr(interrupted, "exit", Exit.INTERRUPTED)))
    except BrokenPipeError:
        sys.exit(int(Exit.INTERRUPTED))
