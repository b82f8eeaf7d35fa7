"""Test that the page of what every command says leaves none out; `make docs` makes it."""

from __future__ import annotations

from docs.tools.transcript import sections, shown_commands
from tests.support.every_command import commands
from tests.support.folders import describes_all


def test_every_command_is_in_the_transcript() -> None:
    shown = [context.command_path.removeprefix("hibali ") for context in shown_commands()]
    assert sorted(shown) == sorted(commands())
    assert [name for name in shown if not sections().get(name)] == []


@describes_all
def test_the_transcript_has_no_command_that_does_not_exist() -> None:
    assert sections().keys() - {"before"} == set(commands())
