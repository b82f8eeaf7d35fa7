"""Test that jobs which handle files end with the command that waits for them, at a real Slurm whose queue is full."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.rest_sites import NAME, SiteCommands, open_site

SIZE = 9 * 1024 * 1024


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("service", "method", "words"),
    [
        ("firecrest", "s3", ("pull", f"{NAME}:large", "{local}")),
        ("firecrest", "streamer", ("pull", f"{NAME}:large", "{local}")),
        ("firecrest", "streamer", ("push", "{source}", f"{NAME}:other")),
        ("iri", "", ("pull", f"{NAME}:large", "{local}")),
        ("iri", "", ("push", "{source}", f"{NAME}:other")),
    ],
    ids=["staged", "streamed", "streamed upload", "split", "joined"],
)
def test_an_interrupted_command_leaves_no_job_in_the_queue(
    service: str, method: str, words: tuple[str, ...], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    site = open_site(request, service)
    double, hibali = site.double, request.getfixturevalue("hibali")
    site.more += "streamer = true\n" if method == "streamer" else ""
    commands = SiteCommands(hibali, site.table())
    for path in (site.home / "large", tmp_path / "source"):
        path.write_bytes(os.urandom(SIZE))
    if method:
        double.transfer_method = method
    double.jobs.held = True
    argv = [word.format(local=tmp_path / "back", source=tmp_path / "source") for word in words]
    process = commands.hibali.start(*argv)
    _wait(lambda: "PENDING" in _states(double))
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    _wait(lambda: _states(double) == {"CANCELLED"})


def _states(double: Any) -> set[str]:
    return {record["JobState"] for record in double.jobs.table().values()}


def _wait(reached: Any) -> None:
    until = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < until
        time.sleep(0.1)
