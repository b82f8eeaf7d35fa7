"""Who uses what of a site's cache: one small file a run, at the site, for everybody who works in that work folder.

It is written before the run looks at an entry, and an eviction reads it after it has taken an entry away: so one of the two
always sees the other. It stays when the run is over, because it also tells when an entry was last used.
"""

from __future__ import annotations

from dataclasses import dataclass

from runs.cache_entry import Name, read_name
from runs.run import RUN_ID
from transfers.far import Far

HELD = b"cache/held"
_PIECE = 4 << 20


@dataclass(frozen=True, slots=True)
class Use:
    """What one run uses, or used; `at_ns` is when it began to, by the clock of the site's filesystem."""

    run: str
    names: frozenset[Name]
    at_ns: int = 0


class Hold:
    """The names that one run holds, in a file of its own at the site."""

    def __init__(self, far: Far, work: bytes, run: str) -> None:
        """`work` is the site's work folder, absolute."""
        self._far = far
        self._folder = work + b"/" + HELD
        self._run = run
        self._names: frozenset[Name] = frozenset()

    def take(self, *names: Name) -> None:
        """Hold these, too: durable at the site when this returns."""
        if self._names.issuperset(names):
            return
        if not self._names:
            self._far.make_folder(self._folder)
        self._names |= frozenset(names)
        lines = "".join(f"{name.text}\n" for name in sorted(self._names))
        self._far.put(_file(self._folder, self._run), lines.encode("ascii"))


def _file(folder: bytes, run: str) -> bytes:
    return folder + b"/" + run.encode("ascii")


def run_of(name: bytes) -> str | None:
    """The run whose file is called so; None where it is nobody's."""
    text = name.decode("ascii", "replace")
    return text if RUN_ID.fullmatch(text) else None


def read_use(far: Far, work: bytes, run: str, at_ns: int = 0) -> Use | None:
    """What that run's file says, a name a line; None where there is none."""
    path = _file(work + b"/" + HELD, run)
    content = b""
    while part := far.get(path, maximum=_PIECE, offset=len(content)):
        content += part
        if len(part) < _PIECE:
            break
    if not content:
        return None
    names = (read_name(line) for line in content.decode("ascii", "replace").splitlines())
    return Use(run, frozenset(name for name in names if name is not None), at_ns)


def remove_use(far: Far, work: bytes, run: str) -> None:
    """Forget what a run used."""
    far.remove_tree(_file(work + b"/" + HELD, run))
