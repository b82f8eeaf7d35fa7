"""What `verify` makes of its options, and how it tells what is proven."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hibali.errors import (
    AccessError,
    Exit,
    IncompleteError,
    NotFoundError,
    NotVerifiedError,
    TryLaterError,
    UsageError,
)
from hibali.locations import read_location
from hibali.system_errors import unreadable
from hibali_cli.failure import tell_people
from hibali_cli.interruption import OutOfTime
from hibali_cli.options import Common
from hibali_cli.progress import listening
from hibali_cli.selecting import take_selection
from transfers.journal import Coverage, Receipt
from transfers.manifest import Manifest, is_bag_name, read_manifest
from transfers.rules import Rules
from transfers.single_files import read_share
from transfers.verify import Question, Verification


def verify(common: Common, first: str, second: str | None, options: dict[str, Any]) -> int:
    """Carry out one verification and tell its receipt; returns the exit code."""
    question = _question(common, first, second, options)
    with listening(common, f"verify {first}", records=True) as tell:
        work = Verification(question, tell)
        try:
            receipt = work.run()
        except OutOfTime:
            if not work.listed:
                raise
            # --max-time is part of the question: the receipt says how far it was answered
            receipt = work.receipt
            receipt.exit = Exit.TRY_LATER
        except KeyboardInterrupt:
            common.output.say("What was found good is kept: --resume goes on from here.")
            raise
    _tell(common, receipt)
    return int(receipt.exit)


def _question(common: Common, first: str, second: str | None, options: dict[str, Any]) -> Question:
    given = options["manifest"]
    if given is not None and second is not None:
        raise UsageError("usage", "a manifest is compared with one place, not with two", about="--manifest")
    if options["bagit"] and given is None:
        raise UsageError("usage", "it says how to read --manifest FILE", about="--bagit")
    if options["seed"] is not None and options["sample"] is None:
        raise UsageError("usage", "it draws a sample: give --sample, too", about="--seed")
    if given == options["files_from"] == "-":
        raise UsageError("usage", "only one list can come from stdin", about="--files-from")
    settings = common.settings()
    places = read_location(first, settings), read_location(second, settings) if second else None
    return Question(
        *places,
        manifest=None if given is None else _read(given, bag=options["bagit"] or is_bag_name(given)),
        rules=Rules(**take_selection(options)),
        exact=options["exact"],
        sample=read_share(options["sample"]) if options["sample"] is not None else None,
        seed=options["seed"],
        resume=options["resume"],
    )


def _read(given: str, *, bag: bool) -> Manifest:
    """A manifest that nobody vouches for, from a file here or from stdin."""
    if given == "-":
        return read_manifest(sys.stdin.buffer, "stdin", bag=bag)
    try:
        with Path(given).open("rb") as stream:
            return read_manifest(stream, given, bag=bag)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError("no-such-file", "there is no such file", about=given) from None
    except PermissionError:
        raise AccessError("denied", "this file may not be read", about=given) from None
    except OSError as problem:
        raise unreadable(problem, given) from None


def _tell(common: Common, receipt: Receipt) -> None:
    if common.json:
        common.output.record("receipt", receipt.to_record())
        return
    coverage = receipt.coverage or Coverage()
    common.output.say(
        f"{receipt.files_kept} of {receipt.files} files are what they should be"
        f"{_how(coverage)}; {receipt.seconds:.1f} s"
    )
    if receipt.exit == Exit.TRY_LATER:
        tell_people(
            TryLaterError(
                "max-time",
                f"stopped because --max-time has elapsed, with {coverage.files_unchecked} files not looked at",
                about=receipt.target,
                hint="The same line with --resume goes on from here.",
            )
        )
    if coverage.files_unrecorded:
        tell_people(_not_verified(receipt, coverage))
    if receipt.files_failed:
        message = f"{receipt.files_failed} differ, are missing or could not be read; they are named above"
        tell_people(IncompleteError("not-proven", message, about=receipt.target))


def _not_verified(receipt: Receipt, coverage: Coverage) -> NotVerifiedError:
    return NotVerifiedError(
        "not-verified",
        f"{coverage.files_unrecorded} of {receipt.files} files have no digest on record, and were not verified",
        about=receipt.target,
        hint="To compare them with their source, and record them: hibali sync --checksum FROM TO",
    )


def _how(coverage: Coverage) -> str:
    """What was looked at, and by whom, where that is not simply everything now."""
    parts = []
    if coverage.files_recorded:
        parts.append(f"{coverage.files_recorded} of them hashed by an earlier call and unchanged since")
    unchecked = coverage.files_unchecked - coverage.files_unrecorded
    if unchecked > 0:
        parts.append(f"{unchecked} were not looked at")
    if coverage.sample_seed is not None:
        parts.append(f"the sample is that of --seed {coverage.sample_seed}")
    return "".join(f"; {part}" for part in parts)
