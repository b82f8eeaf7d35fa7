"""Run `verify` and `manifest`, and show the results."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hibali import __version__
from hibali.amounts import format_size
from hibali.errors import Exit, IncompleteError, UsageError
from hibali.events import Event, Failed, Hashing, Listener, Noted
from hibali.files import WholeFile
from hibali.locations import Location, read_location
from hibali.text import counted, path_fields
from hibali_api.transfer_request import hashing_from, verification_request
from hibali_cli.failure import print_error
from hibali_cli.handlers.transfers import with_names
from hibali_cli.interruption import OutOfTime
from hibali_cli.options import Common
from hibali_cli.progress import listening
from transfers.history.journal import Coverage, Receipt, verification_errors
from transfers.inventory import Hashed, Inventory, InventoryRequest
from transfers.manifest import Manifest, open_manifest, read_manifest, write_bag, write_line
from transfers.model.entry import Verification
from transfers.model.rules import Rules
from transfers.remote.one_session import kept_session
from transfers.sources import with_matches
from transfers.verify import VerificationRequest, Verifier, detection_probability


def verify(common: Common, first: str, second: str | None, **options: Any) -> int:
    """Run one verification and show its receipt; returns the exit code."""
    request = _read_request(common, first, second, options)
    with kept_session(request.first.site), listening(common, f"verify {first}", records=True) as on_event:
        request = with_matches(request, on_event)
        work = Verifier(request, on_event)
        try:
            receipt = work.run()
        except OutOfTime:
            if not work.listed:
                raise
            # --max-time limits the coverage, which the receipt reports
            receipt = work.receipt
            receipt.exit = Exit.TRY_LATER
        except KeyboardInterrupt:
            common.output.info("The results so far are saved. To continue, add --resume.")
            raise
    _show_receipt(common, receipt)
    return int(receipt.exit)


def _read_request(
    common: Common, first: str, second: str | None, options: dict[str, Any]
) -> VerificationRequest:
    manifest_path = options["manifest"]
    if manifest_path is not None and second is not None:
        raise UsageError("usage", "--manifest cannot be used with two locations", subject="--manifest")
    if manifest_path == options["files_from"] == "-":
        raise UsageError(
            "usage", "only one of --manifest and --files-from can be stdin", subject="--files-from"
        )
    manifest = None if manifest_path is None else _read(manifest_path, bag=options["bagit"])
    return verification_request(first, second, manifest, with_names(options), common.settings())


def _read(manifest_path: str, *, bag: bool) -> Manifest:
    """Read an untrusted manifest from a local file or stdin."""
    if manifest_path == "-":
        return read_manifest(sys.stdin.buffer, "stdin", bag=bag)
    return open_manifest(manifest_path, bag=bag)


def _show_receipt(common: Common, receipt: Receipt) -> None:
    if common.json:
        common.output.record("receipt", receipt.to_record())
        return
    coverage = receipt.coverage or Coverage()
    common.output.info(
        f"{receipt.files_kept} of {counted(receipt.files, 'file')} correct"
        f"{_describe_coverage(coverage)}; {receipt.seconds:.1f} s"
    )
    if receipt.exit in {Exit.DONE, Exit.NOT_VERIFIED} and coverage.sample_of:
        common.output.info(
            _describe_sample(coverage.files_hashed + coverage.files_recorded, coverage.sample_of)
        )
    for problem in verification_errors(receipt):
        print_error(problem)


def _describe_coverage(coverage: Coverage) -> str:
    """Describe the coverage, if some files were not hashed in this call."""
    parts = []
    if coverage.files_recorded:
        parts.append(f"{coverage.files_recorded} hashed by an earlier verification and unchanged since")
    unchecked = coverage.files_unchecked - coverage.files_unrecorded
    if unchecked > 0:
        parts.append(f"{unchecked} not verified")
    if coverage.sample_seed is not None:
        parts.append(f"to repeat the sample: --seed {coverage.sample_seed}")
    return "".join(f"; {part}" for part in parts)


_LAST_BITS = 1e-6


def _describe_sample(sample: int, files: int) -> str:
    """Describe what a sample without a difference says about all files."""
    damaged = -(-files // 100)
    if sample > files - damaged:
        found = "100"
    else:  # rounded down, but not by the last bits
        percent = 100 * detection_probability(files, sample, damaged)
        found = ">99" if percent > 99 + _LAST_BITS else f"{int(percent + _LAST_BITS)}"
    return (
        f"A random sample of {sample} of {counted(files, 'file')} ({100 * sample / files:.3g}%) is correct. If 1% of all"
        f" ({counted(damaged, 'file')}) were damaged, this sample would have found at least one with {found}% probability."
    )


_BLOCK = 64 * 1024


def write_manifest(common: Common, wanted: InventoryRequest, output: str | None) -> int:
    """Print or write the manifest of a location; return the exit code."""
    place = wanted.location
    leave_out = _inside(place, output) if output is not None else None
    summary = _Summary(common)
    if output is None and _on_terminal():
        common = replace(common, progress=False)  # the lines themselves are the progress
    with _resume_hint(common), listening(common, f"manifest {place.text}") as on_event, ExitStack() as stack:
        whole = replace(wanted, leave_out=leave_out)
        stock = stack.enter_context(Inventory(whole, summary.counting(on_event)))
        # after the listing, which must not find the partial file
        file = stack.enter_context(WholeFile(Path(output))) if output is not None else None
        lines = bytearray()
        for hashed in stock.hashed():
            summary.add(hashed)
            if file is not None:
                file.write(write_line(hashed.entry.path, hashed.digest))
            elif not common.json:
                lines += write_line(hashed.entry.path, hashed.digest)
                if len(lines) > _BLOCK:
                    _print(common, lines)
        _print(common, lines)
        if file is not None:
            file.commit()
    return summary.end(output or place.text, output)


def write_bagit(common: Common, wanted: InventoryRequest, folder: str) -> int:
    """Write a bag's tag files; returns the exit code."""
    place = wanted.location
    if _inside(place, folder) is not None:
        raise UsageError(
            "bag-inside",
            "the tag files would be inside the payload",
            subject=folder,
            hint="LOCATION is the payload: hibali manifest FOLDER/data --bagit FOLDER",
        )
    summary = _Summary(common)
    with _resume_hint(common), listening(common, f"manifest {place.text}") as listener:
        on_event = summary.counting(listener)
        with Inventory(wanted, on_event) as stock:
            today = datetime.now(UTC).date()
            write_bag(stock, Path(folder), today, f"hibali {__version__}", summary.add)
        if summary.percent:
            names = "names with % are encoded as in RFC 8493, which the program bagit.py cannot read"
            on_event(Noted(f"{summary.percent} of {names}."))
    return summary.end(folder, folder)


class _Summary:
    """The counts of the files printed so far, and the last line."""

    def __init__(self, common: Common) -> None:
        self._common = common
        self._files = self._bytes = self._recorded = self._failed = self._lines = 0
        self.percent = 0

    def counting(self, on_event: Listener) -> Listener:
        """Return a listener that also counts events."""

        def listen(event: Event) -> None:
            self._failed += isinstance(event, Failed)
            verbose = self._common.output.verbose and isinstance(event, Hashing)
            self._lines += verbose or isinstance(event, Failed | Noted)
            on_event(event)

        return listen

    def add(self, hashed: Hashed) -> None:
        """Count one file, and with `--json` write its record."""
        entry = hashed.entry
        self._files += 1
        self._bytes += entry.size
        self._recorded += hashed.verification is Verification.RECORDED
        self.percent += b"%" in entry.path
        if self._common.json:
            self._lines += 1
            self._common.output.record(
                "digest",
                {
                    **path_fields(entry.path),
                    "size": entry.size,
                    "sha256": hashed.digest,
                    "proof": hashed.verification,
                },
            )

    def end(self, subject: str, output: str | None = None) -> int:
        """Write the last line, with the file or folder of the output; return the exit code."""
        code = Exit.INCOMPLETE if self._failed else Exit.DONE
        if self._common.json:
            self._common.output.record("end", {"count": self._lines, "exit": int(code)})
            return int(code)
        earlier = f"; {counted(self._recorded, 'digest')} from the ledger, not computed now"
        self._common.output.info(
            f"{counted(self._files, 'file')} ({format_size(self._bytes)}){earlier if self._recorded else ''}"
            f"{f', in {output}' if output is not None else ''}"
        )
        if self._failed:
            message = f"{counted(self._failed, 'file')} could not be read and left out; see above"
            print_error(IncompleteError("manifest-incomplete", message, subject=subject))
        return int(code)


def _print(common: Common, lines: bytearray) -> None:
    """Print lines: exact bytes to a file or a pipe, escaped to a terminal."""
    if _on_terminal():
        for line in bytes(lines).splitlines():
            common.output.line(line)
    elif lines:
        common.output.raw(bytes(lines))
    lines.clear()


@contextmanager
def _resume_hint(common: Common) -> Iterator[None]:
    """Print a hint after an interruption: no file has to be hashed again."""
    try:
        yield
    except KeyboardInterrupt:
        common.output.info("The computed digests are saved. To reuse them, add --recorded.")
        raise


def _on_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def _inside(place: Location, name: str) -> bytes | None:
    """Return the path of a file or folder relative to a local location; None if it is outside."""
    if place.site.kind != "local" or not place.path.startswith("/"):
        return None
    root = os.path.realpath(place.raw).rstrip(b"/") + b"/"
    found = os.path.realpath(os.fsencode(name))
    if found + b"/" == root:
        return b""
    return found.removeprefix(root) if found.startswith(root) else None


def make_manifest(
    common: Common, location: str, output: str | None, bagit: str | None, **options: Any
) -> int | None:
    """Write the manifest of a location, or make a bag of it; return the exit code."""
    settings = common.settings()
    place = read_location(location, settings)
    hashing = hashing_from(options, settings, (place,))
    rules = Rules(include=options["include"], exclude=options["exclude"])
    wanted = InventoryRequest(place, rules, recorded=options["recorded"], hashing=hashing)
    if bagit is None:
        return write_manifest(common, wanted, output)
    if output is not None or rules.include or rules.exclude:
        raise UsageError(
            "usage",
            "a bag needs the whole payload and writes its own files: omit -o, --include and --exclude",
            subject="--bagit",
        )
    return write_bagit(common, wanted, bagit)
