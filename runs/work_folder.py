"""The work folder of a site, which is ours alone: whoever can write there chooses what runs (S4)."""

from __future__ import annotations

from hibali.errors import RefusedError
from hibali.locations import work_path
from hibali.sites import Site
from hibali.text import printable
from transfers.entry import Entry, Kind
from transfers.far import Far


def make_work_folder(far: Far, site: Site, *below: bytes) -> bytes:
    """The work folder, absolute, made with these folders in it; raises `RefusedError` where others can write to one."""
    work = far.expand(work_path(site))
    for path in (work, *(work + b"/" + name for name in below)):
        far.make_folder(path)
        _check(far.stat(path), site, path)
    return work


def check_work_folder(far: Far, site: Site, *below: bytes) -> bytes:
    """The same of what is there already: `RefusedError` where others can write to one, and so leave runs of their own there."""
    work = far.expand(work_path(site))
    for path in (work, *(work + b"/" + name for name in below)):
        found = far.stat(path)
        if found is not None:
            _check(found, site, path)
    return work


def _check(found: Entry | None, site: Site, path: bytes) -> None:
    if found is None or found.kind is not Kind.FOLDER or (found.mode >= 0 and found.mode & 0o022):
        raise RefusedError(
            "not-private",
            "others can write to this folder of the site",
            about=f"{site.name}:{printable(path)}",
            hint=f"There: chmod go-w {printable(path)}",
        )
