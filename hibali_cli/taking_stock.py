"""What `manifest` prints and writes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from hibali import __version__
from hibali.errors import Exit, IncompleteError, UsageError
from hibali.events import Event, Failed, Hashing, Listener, Noted
from hibali.files import WholeFile
from hibali.locations import Location
from hibali.text import path_fields
from hibali_cli.failure import tell_people
from hibali_cli.options import Common
from hibali_cli.progress import listening
from transfers.entry import Proof
from transfers.inventory import Hashed, Inventory, Wanted
from transfers.manifest import write_bag, write_line
from transfers.rules import Rules

_BLOCK = 64 * 1024


def take_stock(common: Common, place: Location, rules: Rules, output: str | None, *, recorded: bool) -> int:
    """Print or write the manifest of a place; returns the exit code."""
    leave_out = _inside(place, output) if output is not None else None
    told = _Told(common)
    if output is None and _on_terminal():
        common = replace(common, progress=False)  # the lines themselves are the progress
    with _kept(common), listening(common, f"manifest {place.text}") as tell, ExitStack() as stack:
        wanted = Wanted(place, rules, recorded=recorded, leave_out=leave_out)
        stock = stack.enter_context(Inventory(wanted, told.through(tell)))
        # after the listing, which must not find the partial file
        file = stack.enter_context(WholeFile(Path(output))) if output is not None else None
        lines = bytearray()
        for hashed in stock.hashed():
            told.take(hashed)
            if file is not None:
                file.write(write_line(hashed.entry.path, hashed.digest))
            elif not common.json:
                lines += write_line(hashed.entry.path, hashed.digest)
                if len(lines) > _BLOCK:
                    _print(common, lines)
        _print(common, lines)
        if file is not None:
            file.commit()
    return told.end(output or place.text)


def bag(common: Common, place: Location, folder: str, *, recorded: bool) -> int:
    """Write a bag's tag files; returns the exit code."""
    if _inside(place, folder) is not None:
        raise UsageError(
            "bag-inside",
            "the tag files would lie in the payload itself",
            about=folder,
            hint="LOCATION is the payload: hibali manifest FOLDER/data --bagit FOLDER",
        )
    told = _Told(common)
    with _kept(common), listening(common, f"manifest {place.text}") as listener:
        tell = told.through(listener)
        with Inventory(Wanted(place, recorded=recorded), tell) as stock:
            today = datetime.now(UTC).date()
            write_bag(stock, Path(folder), today, f"hibali {__version__}", told.take)
        if told.percent:
            words = (
                "the names with % are written as RFC 8493 has them, which the program bagit.py cannot read"
            )
            tell(Noted(f"{told.percent} of {words}."))
    return told.end(folder)


class _Told:
    """What was told of the files so far."""

    def __init__(self, common: Common) -> None:
        self._common = common
        self._files = self._bytes = self._recorded = self._failed = self._lines = 0
        self.percent = 0

    def through(self, tell: Listener) -> Listener:
        """The same listener, counted."""

        def listen(event: Event) -> None:
            self._failed += isinstance(event, Failed)
            verbose = self._common.output.verbose and isinstance(event, Hashing)
            self._lines += verbose or isinstance(event, Failed | Noted)
            tell(event)

        return listen

    def take(self, hashed: Hashed) -> None:
        """One more file."""
        entry = hashed.entry
        self._files += 1
        self._bytes += entry.size
        self._recorded += hashed.proof is Proof.RECORDED
        self.percent += b"%" in entry.path
        if self._common.json:
            self._lines += 1
            self._common.output.record(
                "digest",
                {
                    **path_fields(entry.path),
                    "size": entry.size,
                    "sha256": hashed.digest,
                    "proof": hashed.proof,
                },
            )

    def end(self, about: str) -> int:
        """The last line."""
        code = Exit.INCOMPLETE if self._failed else Exit.DONE
        if self._common.json:
            self._common.output.record("end", {"count": self._lines, "exit": int(code)})
            return int(code)
        earlier = f"; {self._recorded} of the digests are on record and were not computed now"
        self._common.output.say(
            f"{self._files} files, {self._bytes} bytes{earlier if self._recorded else ''}"
        )
        if self._failed:
            message = f"{self._failed} could not be read and are not in it; they are named above"
            tell_people(IncompleteError("manifest-incomplete", message, about=about))
        return int(code)


def _print(common: Common, lines: bytearray) -> None:
    """Exact bytes for a file or a pipe, escaped for a terminal."""
    if _on_terminal():
        for line in bytes(lines).splitlines():
            common.output.line(line)
    elif lines:
        common.output.raw(bytes(lines))
    lines.clear()


@contextmanager
def _kept(common: Common) -> Iterator[None]:
    """Tell whoever interrupts that nothing has to be hashed twice."""
    try:
        yield
    except KeyboardInterrupt:
        common.output.say("What was hashed is kept: --recorded goes on from here.")
        raise


def _on_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def _inside(place: Location, name: str) -> bytes | None:
    """Where below a place of this machine that file or folder lies; None where it is elsewhere."""
    if place.site.kind != "local" or not place.path.startswith("/"):
        return None
    root = os.path.realpath(place.raw).rstrip(b"/") + b"/"
    found = os.path.realpath(os.fsencode(name))
    if found + b"/" == root:
        return b""
    return found.removeprefix(root) if found.startswith(root) else None
