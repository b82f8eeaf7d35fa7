"""A plan in a few lines: how many names and bytes for each reason."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hibali.errors import Exit
from hibali_cli.options import Common
from hibali_cli.records import event_fields

if TYPE_CHECKING:
    from transfers.planner import Survey


def show_summary(common: Common, plan: Survey, saved: str) -> None:
    """A table for people, records of kind `reason` for programs; never a line for each name."""
    names: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for actions in (plan.moves, plan.adjustments, plan.deletions):
        for action in actions:
            reason = (str(action.verb), action.because)
            names[reason] += 1
            sizes[reason] += action.entry.size
    planned = plan.planned()
    if common.json:
        for reason in sorted(names):
            verb, because = reason
            fields = {"action": verb, "because": because, "names": names[reason], "bytes": sizes[reason]}
            common.output.record("reason", fields)
        common.output.record("planned", event_fields(planned))
        code = Exit.INCOMPLETE if plan.unlisted else Exit.DONE
        common.output.record("end", {"count": len(names) + 1, "exit": int(code)})
        return
    if names:
        rows = [(*reason, names[reason], sizes[reason]) for reason in sorted(names)]
        common.output.table(("action", "because", "names", "bytes"), rows)
    common.output.say(
        f"{planned.files_to_move} of {planned.files} files ({planned.bytes_to_move} bytes) to move,"
        f" {planned.files_kept} kept, {planned.files_to_delete} to delete. Nothing was changed."
        f" Look at {saved}, then: hibali apply {saved}"
    )
