"""Test running programs to their end, with slow readers and limits on output."""

from __future__ import annotations

import sys
import time

import pytest

from hibali.errors import IncompleteError, TryLaterError
from hibali.subprocesses import credentials_from, run

SLOW_READER = """
import sys, time
time.sleep(0.6)
count = 0
while piece := sys.stdin.buffer.read(65536):
    count += len(piece)
    time.sleep(0.02)
time.sleep(0.6)
print(count)
"""
ENDLESS = "import sys\nwhile True:\n    sys.{stream}.write('x' * 65536)"


def test_a_program_that_reads_slowly_gets_all_of_its_input() -> None:
    content = b"x" * 3_000_000
    assert run([sys.executable, "-c", SLOW_READER], stdin=content, timeout=60).stdout == b"3000000\n"
    assert run([sys.executable, "-c", SLOW_READER], timeout=60).stdout == b"0\n"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_program_with_endless_output_is_killed(stream: str) -> None:
    with pytest.raises(IncompleteError) as refused:
        run([sys.executable, "-c", ENDLESS.format(stream=stream)], timeout=60, most=1_000_000)
    assert refused.value.code == "too-much-output"


def test_the_output_of_a_credentials_command_is_limited() -> None:
    with pytest.raises(IncompleteError) as refused:
        credentials_from(
            [sys.executable, "-c", "print('x' * 2_000_000)"], bytes, key="k", what="w", subject="a", hint="h"
        )
    assert refused.value.code == "too-much-output"


def test_a_hanging_program_is_killed_after_the_timeout() -> None:
    began = time.monotonic()
    with pytest.raises(TryLaterError) as refused:
        run([sys.executable, "-c", "import time; time.sleep(60)"], stdin=b"x", timeout=0.7)
    assert refused.value.code == "timed-out"
    assert time.monotonic() - began < 30
