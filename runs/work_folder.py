"""The work folder of a site, which is ours alone: whoever can write there chooses what runs (S4)."""

from __future__ import annotations

from hibali.errors import RefusedError
from hibali.locations import work_path
from hibali.sites import Site
from hibali.text import printable
from transfers.far import Far


def make_work_folder(far: Far, site: Site, *below: bytes) -> bytes:
    """The work folder, absolute, made with these folders in it; raises `RefusedError` where others can write to one."""
    work = far.expand(work_path(site))
    for path in (work, *(work + b"/" + name for name in below)):
        far.make_folder(path)
        check_private(far, site, path)
    return work


def check_work_folder(far: Far, site: Site, *below: bytes) -> bytes:
    """The same of what exists already: `RefusedError` where others can write to one, and so leave runs of their own there."""
    work = far.expand(work_path(site))
    for path in (work, *(work + b"/" + name for name in below)):
        if far.stat(path) is not None:
            check_private(far, site, path)
    return work


def check_private(far: Far, site: Site, path: bytes) -> None:
    """Raise `RefusedError` where a folder is not ours, or others can write to it."""
    if not far.is_private(path):
        raise RefusedError(
            "not-private",
            "this folder of the site belongs to another account, or others can write to it",
            about=f"{site.name}:{printable(path)}",
            hint=f"If it is yours: chmod go-w {printable(path)}",
        )
