"""Decide how wide the columns of a table are on a terminal; pure."""

from __future__ import annotations

from collections.abc import Sequence

from hibali_cli.drawing import shortened

_GAP = 2
_IDENTIFIER = 24  # columns of the id of a run or an operation, which is there to be copied
_LEAST = 8


def fitting_widths(
    natural: Sequence[int], headings: Sequence[int], numeric: Sequence[bool], room: int
) -> list[int]:
    """Return the widths of as many columns as fit into `room`, the first ones first.

    The widest give way first. Numbers are never cut, and of the first column so much stays as an id needs.
    """
    least = [
        width if number else min(width, max(heading, _IDENTIFIER if position == 0 else _LEAST))
        for position, (width, heading, number) in enumerate(zip(natural, headings, numeric, strict=True))
    ]
    count = len(natural)
    while count > 1 and sum(least[:count]) + _GAP * (count - 1) > room:
        count -= 1
    left = room - _GAP * (count - 1)
    if count == 1:
        return [min(natural[0], max(1, left))]
    low, high = 0, max(natural[:count])
    while low < high:  # the largest width that no column has to exceed
        middle = (low + high + 1) // 2
        taken = sum(
            max(smallest, min(width, middle)) for width, smallest in zip(natural[:count], least, strict=False)
        )
        low, high = (middle, high) if taken <= left else (low, middle - 1)
    return [max(smallest, min(width, low)) for width, smallest in zip(natural[:count], least, strict=False)]


def cut(text: str, width: int) -> str:
    """The text in at most so many columns, its beginning and its end where it is too long."""
    return shortened(text, width, front=0.5)
