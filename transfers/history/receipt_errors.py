"""Say what a receipt leaves undone, as the errors of the command or call."""

from __future__ import annotations

from hibali.errors import Exit, HibaliError, IncompleteError, NotVerifiedError, TryLaterError
from hibali.text import counted
from transfers.history.journal import Coverage, Receipt


def weak_verification(receipt: Receipt, hint: str) -> IncompleteError:
    """Return the error of a transfer whose proof is weaker than `--require-proof`."""
    return IncompleteError(
        "weak-verification",
        f"the files were moved, but verified by {receipt.proof_moved} only, which is weaker than required",
        subject=receipt.target,
        hint=hint,
    )


def verification_errors(receipt: Receipt) -> list[HibaliError]:
    """Return why a verification does not prove the whole tree, the gravest reason last."""
    coverage = receipt.coverage or Coverage()
    found: list[HibaliError] = []
    if receipt.exit is Exit.TRY_LATER:
        found.append(
            TryLaterError(
                "max-time",
                f"stopped because --max-time has elapsed; {counted(coverage.files_unchecked, 'file')} not verified",
                subject=receipt.target,
                hint="To continue, run the same command with --resume.",
            )
        )
    if coverage.files_unrecorded:
        found.append(
            NotVerifiedError(
                "not-verified",
                f"{coverage.files_unrecorded} of {counted(receipt.files, 'file')} not verified: no digest is recorded",
                subject=receipt.target,
                hint="To compare them with their source, and record their digests: hibali sync --checksum FROM TO",
            )
        )
    if receipt.files_failed:
        message = f"{counted(receipt.files_failed, 'file')} different, missing or unreadable; see above"
        found.append(IncompleteError("not-proven", message, subject=receipt.target))
    return found
