"""Select the part of a dataset that an input names, with the parts of the datasets that it links to.

Source: Brain Imaging Data Structure 1.10, "dataset_description.json": `DatasetLinks` says which dataset `raw` in `bids:raw:sub-01/anat/x.nii.gz` is.

An input `FOLDER/./DATASET/sub-LABEL`, as rsync --relative has it, is a participant's part of the dataset FOLDER/DATASET and of each dataset inside FOLDER
to which that one links, at the same relative paths, so that the links mean the same in the job. FOLDER is the limit: no link leads out of it.
Links of linked datasets are not followed, so that they cannot form a circle.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import accumulate
from pathlib import Path
from urllib.parse import unquote

from hibali.errors import NotFoundError, UsageError
from hibali.locations import Location
from hibali.text import printable
from hibali_plugins.participants.parts import DESCRIPTION, PATH, Dataset, find_dataset, open_dataset
from runs.identity import PART, Part
from transfers.model.entry import Kind
from transfers.model.rules import Rules
from transfers.stores.open_store import open_store

_NESTED = re.compile(rf"(?:(.+)/)?({PATH.pattern})")
_FILE = re.compile(r"file:(?://(?:localhost)?)?(/[^?#]*)", re.IGNORECASE)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_MOST_LINKS = 100


def is_below(path: str) -> bool:
    """Return whether a relative path is one below a folder."""
    return path.isprintable() and {"", ".", ".."}.isdisjoint(path.split("/"))


def folder_of(path: str) -> str | None:
    """See runs.identity.Parts."""
    found = _NESTED.fullmatch(path)
    return (found[1] or "") if found is not None and is_below(path) else None


def select_parts(folder: Location, paths: Sequence[str]) -> dict[str, Part]:
    """See runs.identity.Parts."""
    found: dict[str, Part] = {}
    for below in sorted({folder_of(each) or "" for each in paths}):
        own = {each.removeprefix(f"{below}/"): each for each in paths if folder_of(each) == below}
        if not below:
            found |= open_dataset(folder).require(own)
            continue
        whole = {each: each.partition("/")[0] for each in own}  # of linked datasets also for a session
        parts = {
            place: dataset.require(own if place == below else whole.values())
            for place, dataset in open_linked(folder, below).items()
        }
        for path, text in own.items():
            found[text] = _combine(
                {place: part[path if place == below else whole[path]] for place, part in parts.items()}
            )
    return found


def _combine(parts: Mapping[str, Part]) -> Part:
    """Return parts of several datasets in a folder, by the paths of those, as one part of the folder."""
    names: set[bytes] = set()
    written: dict[bytes, bytes] = {}
    shared: set[bytes] = set()
    for place, part in parts.items():
        above = os.fsencode(f"{place}/" if place else "")
        names |= {above + each for each in part.rules.files_from or ()}
        written |= {above + each: content for each, content in part.written.items()}
        shared |= {above + each for each in part.shared}
    return Part(Rules(files_from=frozenset(names)), written, frozenset(shared))


def open_linked(folder: Location, below: str) -> dict[str, Dataset]:
    """Open a dataset in a folder, and the datasets inside the folder to which it links, by their paths below the folder.

    An absolute link is relative in the job: the description of the dataset is written so.

    Raises `UsageError` if it links to none, or cannot be opened itself.
    """
    own = _open(folder, below)
    datasets, links, refused = {below: own}, dict[str, str](), dict[str, str]()
    named = list(links_of(own))
    if len(named) > _MOST_LINKS:
        raise _refusal(f"it has more than {_MOST_LINKS} DatasetLinks", folder, below)
    for name, target in named:
        try:
            place = _place_of(folder, own.root, target)
            datasets[place] = datasets.get(place) or _open(folder, place)
        except (NotFoundError, UsageError) as problem:
            refused[name] = problem.message
        else:
            links |= {name: posixpath.relpath(place or ".", below)} if _absolute(target) else {}
    if len(datasets) == 1:
        reasons = [f"{printable(name)}: {reason}" for name, reason in refused.items()]
        raise _refusal(
            "\n".join([f"no DatasetLinks of it lead to another dataset in {folder.text}", *reasons]),
            folder,
            below,
        )
    own.refused = refused
    if links:
        described = {
            **own.description,
            "DatasetLinks": {**own.description["DatasetLinks"], **links},
        }
        own.written = {DESCRIPTION: f"{json.dumps(described, indent=2)}\n".encode("ascii")}
    return datasets


def _open(folder: Location, below: str) -> Dataset:
    """Open a dataset in a folder. Raises `UsageError` if it is none, or if its path is not one of folders only: symlinks are not followed."""
    with closing(open_store(folder)) as store:
        for path in accumulate(below.split("/"), "{}/{}".format) if below else ():
            entry = store.stat(os.fsencode(path))
            if entry is None or entry.kind is not Kind.FOLDER:
                what = "does not exist" if entry is None else "is not a folder"
                raise _refusal(f"{printable(path)} {what}", folder, below)
    found = find_dataset(folder.child(os.fsencode(below)) if below else folder)
    if found is None:
        raise _refusal(
            f"{printable(below) or 'the folder'} is not a dataset with participants", folder, below
        )
    found.names_files = bool(found.patterns)
    return found


def _refusal(message: str, folder: Location, below: str) -> UsageError:
    return UsageError(
        "no-linked-dataset",
        message,
        subject=f"{folder.text}{PART}{below}",
        hint=f"For a dataset without those that it links to: {folder.text}/{below}",
    )


def _place_of(folder: Location, root: Location, target: str) -> str:
    """Return the path below a folder to which a dataset links; raises `UsageError` if it is outside, or the dataset itself."""
    path = resolve_link(root, target)
    place = ".." if path is None else posixpath.relpath(path, folder.path or ".")
    if place.split("/")[0] == "..":
        raise _refusal(f"it leads out of {folder.text}", folder, target)
    if path is not None and posixpath.relpath(path, root.path) == ".":
        raise _refusal("it leads to the dataset itself", folder, target)
    return "" if place == "." else place


def links_of(dataset: Dataset) -> Iterator[tuple[str, str]]:
    """Yield the names and targets of `DatasetLinks` that are no URLs."""
    links = dataset.description.get("DatasetLinks")
    for name, target in links.items() if isinstance(links, dict) else ():
        if isinstance(target, str) and (_FILE.match(target) or not _SCHEME.match(target)):
            yield name, target


def resolve_link(root: Location, target: str) -> str | None:
    """Return where the target of a dataset's link is, a path as that of its location; None if it cannot be there."""
    if absolute := _absolute(target):
        if not root.typed_local:
            return None
        target = os.path.relpath(os.path.realpath(absolute), os.path.realpath(os.fsdecode(root.raw)))
    path = posixpath.normpath(posixpath.join(root.path, target))
    return path if target.isprintable() and path.split("/")[0] != ".." else None


def name_with_links(root: Location, path: str) -> str:
    """Return the name of an input that is a dataset with the one to which it links at a path of this machine; "" if there is none."""
    if not root.typed_local or not Path(path).is_dir():
        return ""
    folder = posixpath.commonpath([root.path, path])
    folder = posixpath.dirname(folder) if folder == root.path.rstrip("/") else folder
    return f"{folder}{PART}{posixpath.relpath(root.path, folder)}" if folder != "/" else ""


def _absolute(target: str) -> str:
    """Return the absolute path in a link; "" for a relative one."""
    found = _FILE.fullmatch(target)
    path = unquote(found[1]) if found is not None else target
    return path if path.startswith("/") and path.isprintable() else ""
