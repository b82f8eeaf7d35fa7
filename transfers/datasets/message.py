"""What a commit says of the call that made it: a line for people, and the receipt for programs."""

from __future__ import annotations

import json

from hibali.text import printable
from transfers.receipt import Receipt

BEGIN = "=== hibali receipt ==="
END = "^^^ hibali receipt ^^^"


def commit_message(receipt: Receipt) -> str:
    """Not between DataLad's own markers: `datalad rerun` would look for a command in it."""
    done = [f"{receipt.files_moved} files"]
    if receipt.files_linked:
        done.append(f"{receipt.files_linked} links")
    if receipt.files_deleted:
        done.append(f"{receipt.files_deleted} deletions")
    subject = f"[HIBALI] {receipt.operation} {printable(receipt.source)}: {', '.join(done)}"
    block = json.dumps(receipt.to_record(), indent=1, sort_keys=True)
    return f"{subject}\n\n{BEGIN}\n{block}\n{END}\n"
