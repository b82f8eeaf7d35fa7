"""Read descriptors from files, folders, the cache of bosh, URLs, Zenodo, CBRAIN, git repositories and niwrap."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import new as new_hash
from pathlib import Path
from typing import Any

from hibali.config.model import CatalogueSettings
from hibali.documents import MAXIMUM_BYTES, read_json
from hibali.errors import NotFoundError, RefusedError, TryLaterError, UsageError
from hibali.files import private_folder, state_folder
from hibali.text import printable
from registry.git import Git, read_blobs
from registry.problems import Problem, read_file_bytes
from registry.styx import NIWRAP_PLACE, convert_tool, select_tools

_ZENODO_ID = re.compile(
    r"(?:(?P<server>https?://[^/]+)/records?/|(?:doi:|https://doi\.org/)?(?P<prefix>10\.\d+)/zenodo\.|zenodo[.:-])"
    r"(?P<number>\d{1,12})(?:\.json)?"
)
_MOST = 10_000  # descriptors from one place
_MOST_BYTES = 256 * 1024 * 1024  # of the files of a git repository
_FETCHED = "refs/hibali/source"
_LOGIN = re.compile(r"(?<=://)[^/]*@")
_CHECKSUMS = {"md5", "sha256", "sha512"}
_CBRAIN_ID = re.compile(r"cbrain:([0-9]{1,12})")
_GIT_PLACE = re.compile(
    r"(?P<url>(?:https|ssh|file)://[^@#\s]*(?:@[^@#/\s]+(?:[:/][^@#\s]*))?)(?:@(?P<ref>[^@#\s]+))?(?:#(?P<folder>.*))?"
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible descriptor: its bytes, and the name of its source in messages.

    `name` is the one for the catalogue, if it is not the descriptor's; `origin` is where exactly this content is stored, and
    `changes` is what was changed of it.
    """

    subject: str
    raw: bytes
    name: str | None = None
    origin: str = ""
    changes: tuple[Problem, ...] = ()

    @property
    def is_descriptor(self) -> bool:
        """Return whether it has the keys that every descriptor has; folders can have other JSON files, too."""
        if len(self.raw) > MAXIMUM_BYTES:
            return False
        try:
            found = json.loads(self.raw)
        except (ValueError, RecursionError):
            return b'"command-line"' in self.raw
        return isinstance(found, dict) and {"command-line", "inputs"} <= found.keys()


@dataclass(frozen=True, slots=True)
class Access:
    """The access of a source: `origins` such as `http://localhost:8080` may be private and without TLS; `scratch` is a folder for downloads."""

    scratch: Path
    zenodo: str = "https://zenodo.org"
    origins: frozenset[str] = frozenset()
    cbrain: str = "https://portal.cbrain.mcgill.ca"
    niwrap: str = "https://github.com/styx-api/niwrap"


def access_of(settings: CatalogueSettings) -> Access:
    """Return the access that the settings grant."""
    scratch = private_folder(state_folder() / "catalogue-partial")
    return Access(scratch, settings.zenodo, frozenset(settings.origins), settings.cbrain, settings.niwrap)


def source_name(place: str) -> str:
    """Return the kind of a place, a key of the readers."""
    if place == "-":
        return "file"
    if place.startswith("bosh:"):
        return "bosh"
    if place.startswith("cbrain:"):
        return "cbrain"
    if place.startswith(("niwrap:", "niwrap@")) and not Path(place).exists():
        return "niwrap"
    if _ZENODO_ID.fullmatch(place) and not Path(place).exists():
        return "zenodo"
    if place.startswith("git+") or (_is_url(place) and place.partition("#")[0].endswith(".git")):
        return "git"
    if _is_url(place):
        return "url"
    if place.endswith("/") or Path(place).is_dir():
        return "folder"
    return "file"


def find_candidates(place: str, access: Access) -> Iterator[Candidate]:
    """Return the candidates at a place of any kind; raises `NotFoundError`, `TryLaterError`, `UsageError`, `RefusedError`."""
    for number, candidate in enumerate(_READERS[source_name(place)](place, access)):
        if number >= _MOST:
            raise UsageError("too-many", f"more than {_MOST} descriptors", subject=printable(place))
        yield candidate


def _is_url(place: str) -> bool:
    return place.startswith(("https://", "http://"))


def _from_file(place: str, access: Access) -> Iterator[Candidate]:
    """Read one descriptor from a file or standard input."""
    del access
    if place == "-":
        yield Candidate("standard input", sys.stdin.buffer.read(MAXIMUM_BYTES + 1))
    else:
        yield Candidate(place, read_file_bytes(Path(place)))


def _from_folder(place: str, access: Access) -> Iterator[Candidate]:
    """Read all descriptors below a folder; hidden folders, symlinks and other JSON files are ignored."""
    del access
    root = Path(place)
    if not root.is_dir():
        raise NotFoundError(
            "no-such-folder", "the folder does not exist", subject=printable(os.fsencode(root))
        )
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        for name in sorted(files):
            path = Path(folder) / name
            if name.endswith(".json") and path.is_file() and not path.is_symlink():
                candidate = Candidate(str(path), read_file_bytes(path))
                if candidate.is_descriptor:
                    yield candidate


def _from_bosh(place: str, access: Access) -> Iterator[Candidate]:
    """Read the cache of `bosh pull` (boutiques 0.5.33, puller.py): `bosh:` or `bosh:zenodo.123`."""
    del access
    wanted = place.removeprefix("bosh:")
    folder = Path("~/.cache/boutiques/production").expanduser()
    if wanted:
        found = _ZENODO_ID.fullmatch(wanted)
        if found is None or found["server"] or found["prefix"]:
            raise UsageError(
                "bad-zenodo-id",
                "names in the cache of bosh have the form zenodo.1234567",
                subject=printable(place),
            )
        yield Candidate(place, read_file_bytes(folder / f"zenodo-{found['number']}.json"))
        return
    files = sorted(folder.glob("zenodo-*.json"))
    if not files:
        raise NotFoundError(
            "no-bosh-cache",
            "bosh has no cached descriptors on this machine",
            subject=str(folder),
            hint="To fetch from Zenodo directly: hibali pipelines add zenodo.1234567",
        )
    for file in files:
        yield Candidate(f"bosh:{file.stem.replace('-', '.', 1)}", read_file_bytes(file))


def _from_cbrain(place: str, access: Access) -> Iterator[Candidate]:
    """Read the descriptor of a tool configuration of a CBRAIN portal, which is public: `cbrain:123`."""
    from hibali.http.fetch import fetch  # start-up: only for sources on the web

    found = _CBRAIN_ID.fullmatch(place)
    if found is None:
        raise UsageError(
            "bad-tool-config",
            "tool configurations of CBRAIN have the form cbrain:123",
            subject=printable(place),
            hint="The portal shows the number of each version of a tool.",
        )
    url = f"{access.cbrain}/tool_configs/{found[1]}/boutiques_descriptor"
    yield Candidate(place, fetch(url, access.origins, MAXIMUM_BYTES))


def _from_url(place: str, access: Access) -> Iterator[Candidate]:
    """Read one descriptor from a URL."""
    from hibali.http.fetch import fetch  # start-up: only for sources on the web

    yield Candidate(place, fetch(place, access.origins, MAXIMUM_BYTES))


def _from_zenodo(place: str, access: Access) -> Iterator[Candidate]:
    """Read the descriptors of a record (https://developers.zenodo.org, records; InvenioRDM has the same API)."""
    from hibali.http.fetch import fetch  # start-up: only for sources on the web

    found = _ZENODO_ID.fullmatch(place)
    assert found is not None
    number = found["number"]
    subject = f"zenodo.{number}"
    if found["server"] not in {None, access.zenodo}:
        raise _not_there(place, access)
    record = read_json(fetch(f"{access.zenodo}/api/records/{number}", access.origins, MAXIMUM_BYTES), subject)
    doi = record.get("doi") if isinstance(record, dict) else None
    if found["prefix"] and str(doi).partition("/")[0] != found["prefix"]:  # the sandbox's, for example
        raise _not_there(place, access)
    offered = [each for each in _zenodo_files(record) if _name(each).endswith(".json")]
    count = 0
    for each in offered:
        raw, origin = _zenodo_file(each, subject, access), f"{access.zenodo}/records/{number}"
        candidate = Candidate(f"{subject}/{_name(each)}", raw, origin=origin)
        if len(offered) == 1 or candidate.is_descriptor:
            count += 1
            yield candidate
    if not count:
        raise NotFoundError("no-descriptor", "the record has no Boutiques descriptor", subject=subject)


def _not_there(place: str, access: Access) -> UsageError:
    return UsageError(
        "bad-zenodo-id",
        f"this is no record of {access.zenodo}, where records are looked up",
        subject=printable(_LOGIN.sub("", place)),
        hint="For a record of another Zenodo or InvenioRDM, set `zenodo` in [catalogue] of config.toml.",
    )


def _zenodo_file(file: dict[str, Any], subject: str, access: Access) -> bytes:
    """Download a file and compare its checksum."""
    from hibali.http.fetch import fetch  # start-up: only for sources on the web

    links = file.get("links")
    url = links.get("self") or links.get("content") if isinstance(links, dict) else None
    if not isinstance(url, str):
        raise TryLaterError("bad-answer", "the record does not say where its files are", subject=subject)
    raw = fetch(url, access.origins, MAXIMUM_BYTES)
    kind, _, digest = str(file.get("checksum", "")).partition(":")
    if kind in _CHECKSUMS and new_hash(kind, raw, usedforsecurity=False).hexdigest() != digest:
        raise RefusedError(
            "content-differs",
            f"the downloaded file has another {kind} than in the record ({printable(digest)})",
            subject=f"{subject}/{printable(_name(file))}",
        )
    return raw


def _zenodo_files(record: Any) -> list[dict[str, Any]]:
    files = record.get("files") if isinstance(record, dict) else None
    return [each for each in files if isinstance(each, dict)] if isinstance(files, list) else []


def _name(file: dict[str, Any]) -> str:
    name = file.get("key") or file.get("filename")
    return name if isinstance(name, str) else ""


def _from_git(place: str, access: Access) -> Iterator[Candidate]:
    """Read descriptors from a repository without a checkout: `git+https://HOST/PATH[@REF][#FOLDER]` (S13)."""
    found = _GIT_PLACE.fullmatch(place.removeprefix("git+"))
    if found is None:
        raise UsageError(
            "bad-git-url",
            "the URL of a git repository is git+https://HOST/PATH, git+ssh://HOST/PATH or git+file:///PATH, with optional @REF and #FOLDER",
            subject=printable(place),
        )
    folder = (found["folder"] or "").strip("/")
    with _fetched(found["url"], found["ref"] or "HEAD", access) as (repository, origin):
        files = {
            name: each
            for name, each in _list_json_files(repository).items()
            if not folder or name == folder or name.startswith(f"{folder}/")
        }
        for name, raw in _read_files(repository, files, place):
            candidate = Candidate(
                f"git+{found['url']}: {printable(name)}", raw, origin=f"{origin}#{printable(name)}"
            )
            if candidate.is_descriptor:
                yield candidate


def _from_niwrap(place: str, access: Access) -> Iterator[Candidate]:
    """Read descriptors of niwrap, `niwrap[@REF]:SUITE[/VERSION][/TOOL]`, and convert them from Styx's form."""
    found = NIWRAP_PLACE.fullmatch(place)
    if found is None:
        raise UsageError(
            "bad-niwrap-tool",
            "tools of niwrap have the form niwrap:fsl/bet, niwrap:fsl/6.0.4/bet, or niwrap:fsl for all tools of FSL",
            subject=printable(place),
            hint="To take those of one commit or branch: niwrap@COMMIT:fsl/bet",
        )
    with _fetched(access.niwrap, found["ref"] or "HEAD", access) as (repository, origin):
        listed = _list_json_files(repository)
        tools = select_tools(listed, found["path"])
        if not tools:
            raise NotFoundError(
                "no-descriptor",
                "niwrap has no such suite, version or tool, or does not describe it in Boutiques",
                subject=printable(place),
                hint=f"Upper and lower case differ. Its folders: {access.niwrap}/tree/HEAD/src/niwrap",
            )
        wanted = sorted({*tools, *filter(None, tools.values())})
        contents = dict(_read_files(repository, {name: listed[name] for name in wanted}, place))
        for name, version in tools.items():
            tool, raw, changes = convert_tool(name, contents[name], contents.get(version, b""))
            yield Candidate(
                f"niwrap:{printable(name)}", raw, tool, f"{origin}#{printable(name)}", tuple(changes)
            )


@contextlib.contextmanager
def _fetched(url: str, ref: str, access: Access) -> Iterator[tuple[Git, str]]:
    """Fetch one commit of a repository, and return the origin of its files, `git+URL@COMMIT`, without a password."""
    partial = access.scratch / secrets.token_hex(16)
    try:
        repository = Git(partial)
        repository.check_output("init", "-q", "--bare", "--template=", str(partial))
        _fetch_ref(repository, url, ref)
        commit = repository.check_output("rev-parse", f"{_FETCHED}^{{commit}}").decode().strip()
        yield repository, f"git+{_LOGIN.sub('', url)}@{commit}"
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _fetch_ref(repository: Git, url: str, ref: str) -> None:
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
    fetched = repository.run(*arguments, url, f"{ref}:{_FETCHED}", own_settings=True)
    if fetched.exit_code:
        stderr = printable(fetched.stderr.strip()[-400:])
        if b"couldn't find remote ref" in fetched.stderr:
            raise NotFoundError(
                "no-such-ref", "the repository has no such branch or tag", subject=printable(ref)
            )
        raise TryLaterError(
            "git-unreachable", f"the repository cannot be fetched: {stderr}", subject=printable(url)
        )


def _list_json_files(repository: Git) -> dict[str, tuple[str, int]]:
    """Return the object and size of each JSON file of the fetched commit; symlinks are ignored."""
    found = {}
    for line in filter(None, repository.check_output("ls-tree", "-r", "-z", "-l", _FETCHED).split(b"\0")):
        record, _, name = line.partition(b"\t")
        mode, _, digest, size = record.split()
        if name.endswith(b".json") and mode.startswith(b"100") and int(size) <= MAXIMUM_BYTES:
            found[os.fsdecode(name)] = digest.decode(), int(size)
    return found


def _read_files(
    repository: Git, files: Mapping[str, tuple[str, int]], subject: str
) -> Iterator[tuple[str, bytes]]:
    if len(files) > _MOST or sum(size for _, size in files.values()) > _MOST_BYTES:
        raise UsageError(
            "too-many", "too many or too large JSON files", subject=subject, hint="Name a folder: ...#FOLDER"
        )
    blobs = [(os.fsencode(name), digest) for name, (digest, _) in files.items()]
    for name, raw in read_blobs(repository, blobs):
        yield os.fsdecode(name), raw


_READERS: Mapping[str, Callable[[str, Access], Iterator[Candidate]]] = {
    "bosh": _from_bosh,
    "cbrain": _from_cbrain,
    "file": _from_file,
    "folder": _from_folder,
    "git": _from_git,
    "niwrap": _from_niwrap,
    "url": _from_url,
    "zenodo": _from_zenodo,
}
