"""Test that a command on several things tries each, prints every failure once, and ends with the worst."""

from __future__ import annotations

import pytest

from hibali.errors import HibaliError, NotFoundError, RefusedError, TryLaterError
from hibali_cli.failure import Failures


def test_every_failure_is_reported_once_and_the_worst_ends_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failures, tried = Failures(), []
    problems: dict[str, HibaliError | None] = {
        "a": NotFoundError("no-such-run", "a is unknown"),
        "b": None,
        "c": RefusedError("not-removed", "c is running"),
        "d": TryLaterError("unreachable", "d does not answer"),
    }
    for name, problem in problems.items():
        with failures.collect():
            tried.append(name)
            if problem is not None:
                raise problem
    assert tried == list(problems)
    with pytest.raises(RefusedError, match="c is running"):
        failures.end()
    printed = capsys.readouterr().err
    assert "a is unknown" in printed
    assert "d does not answer" in printed
    assert "c is running" not in printed


def test_without_a_failure_the_code_is_returned() -> None:
    failures = Failures()
    assert not failures
    assert failures.end(6) == 6


def test_other_exceptions_end_the_command_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), Failures().collect():
        raise KeyboardInterrupt
