"""Roots that are only read: a target in one of them, or above one, is refused, whatever name it was given."""

from __future__ import annotations

from contextlib import closing

from hibali.errors import RefusedError, UsageError
from hibali.events import Listener, ignore
from hibali.locations import Location
from transfers.far import Far
from transfers.places import open_far

_SECONDS = 20.0


def check_guarded(target: Location, where: bytes, tell: Listener = ignore) -> None:
    """Raise `RefusedError` where `where`, an absolute path there, and a read-only root are one inside the other.

    What is typed is known to differ from what is meant: `$NAME`, `~` and symlinks are followed at the site.
    """
    site = target.site
    roots = [site.roots[name] for name in site.read_only]
    if not roots:
        return
    try:
        with closing(open_far(site, tell=tell)) as far:
            real = _real_paths(far, [where, *(far.expand(root) for root in roots)])
    except UsageError:
        real = [where, *(root.encode("utf-8", "surrogateescape") for root in roots)]  # no machine to ask
    for name, root in zip(site.read_only, real[1:], strict=True):
        relation = lies(real[0], root)
        if relation is not None:
            raise RefusedError(
                "read-only-root",
                f"this lies {relation} the root @{name}, which the configuration calls read-only",
                about=target.text,
                hint=f"Write elsewhere, or take the root out of sites.{site.name}.read_only.",
            )


def lies(path: bytes, root: bytes) -> str | None:
    """How a path lies to a root: "in", "above", or neither."""
    path, root = path.rstrip(b"/") + b"/", root.rstrip(b"/") + b"/"
    if path.startswith(root):
        return "in"
    return "above" if root.startswith(path) else None


def _real_paths(far: Far, paths: list[bytes]) -> list[bytes]:
    """Without symlinks, as far as anything stands there; as they are where the site has no realpath(1)."""
    found = far.run([b"realpath", b"-z", b"-m", b"--", *paths], timeout=_SECONDS)
    real = found.stdout.split(b"\0")[:-1]
    return real if found.exit_code == 0 and len(real) == len(paths) else paths
