"""How a sweep is shown: a letter a task on a terminal, a line a state elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from hibali.text import write_ranges
from hibali_cli.options import Common
from hibali_cli.output import is_terminal
from runs.model import State, Sweep

_LETTERS = {
    State.FAILED: "F",
    State.LOST: "?",
    State.CANCELLED: "C",
    State.RUNNING: "r",
    State.WAITING: "w",
    State.SUBMITTED: "s",
    State.STAGED: ".",
    State.PREPARED: ".",
    State.SUCCEEDED: "+",
}  # of several tasks in one place the first of these is shown
_IN_LINE = 50
_GROUP = 10
_MOST_LINES = 40
_SHORT = 60


def counts_text(sweep: Sweep) -> str:
    """How many tasks there are in each state, in words."""
    return ", ".join(f"{count} {state}" for state, count in sweep.counts().items())


def tasks_text(sweep: Sweep) -> str:
    """How many tasks have ended, of how many, and how many of them not well."""
    ended = sum(task.state.ended for task in sweep.tasks.values())
    bad = ended - len(sweep.in_state(State.SUCCEEDED))
    return f"{ended}/{len(sweep.tasks)}" + (f", {bad} not well" if bad else "")


def show_tasks(common: Common, sweep: Sweep) -> None:
    """The grid where somebody looks, and the states with their tasks."""
    drawn = is_terminal(sys.stdout)
    for line in grid(sweep) if drawn else ():
        common.output.line(line)
    rows = [
        (_LETTERS[state], state, count, _short(write_ranges(sweep.in_state(state)), drawn=drawn))
        for state, count in sweep.counts().items()
    ]
    headings = ["", "state", "count", "tasks"]
    first = 0 if drawn else 1
    common.output.table(headings[first:], [row[first:] for row in rows])


def _short(text: str, *, drawn: bool) -> str:
    return f"{text[:_SHORT]}..." if drawn and len(text) > _SHORT else text


def grid(sweep: Sweep) -> Iterator[str]:
    """Lines of letters with the number of each one's first task; in a large sweep a letter stands for several tasks, the worst of them."""
    numbers = list(sweep.tasks)
    each = -(-len(numbers) // (_IN_LINE * _MOST_LINES))
    width = len(str(numbers[-1]))
    for start in range(0, len(numbers), each * _IN_LINE):
        line = numbers[start : start + each * _IN_LINE]
        letters = [_worst(sweep, line[place : place + each]) for place in range(0, len(line), each)]
        groups = ("".join(letters[place : place + _GROUP]) for place in range(0, len(letters), _GROUP))
        yield f"{line[0]:>{width}}  {' '.join(groups)}"
    if each > 1:
        yield f"{'':>{width}}  each for {each} tasks, the worst of them"


def _worst(sweep: Sweep, numbers: Sequence[int]) -> str:
    states = {sweep.tasks[number].state for number in numbers}
    return next(letter for state, letter in _LETTERS.items() if state in states)
