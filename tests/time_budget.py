"""Stop starting tests after a deadline; skip the rest by name, and start at another place for each commit.

The reasons and limits of this are in docs/decisions/tests.md.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter

import pytest

UNTIL = "HIBALI_TESTS_UNTIL"  # the deadline in seconds since the epoch; workers inherit the environment
ORDER = "HIBALI_TESTS_ORDER"  # any text, such as a commit: each text is a different order
NOT_STARTED = "not started before the deadline"


def sort_key(item: pytest.Item, order: str) -> tuple[bool, str]:
    """Return the sort key: tests marked `early` first, then files in the order that `order` determines."""
    file = item.nodeid.partition("::")[0]
    return item.get_closest_marker("early") is None, hashlib.sha256(
        f"{order} {file}".encode()
    ).hexdigest() if order else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = os.environ.get(ORDER, "")
    items.sort(key=lambda item: sort_key(item, order))  # a stable sort keeps the order within a file


def pytest_runtest_setup(item: pytest.Item) -> None:
    until = float(os.environ.get(UNTIL, "inf"))
    if time.time() > until and item.get_closest_marker("early") is None:
        pytest.skip(NOT_STARTED)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    files = Counter(
        report.nodeid.partition("::")[0]
        for report in terminalreporter.stats.get("skipped", [])
        if NOT_STARTED in str(report.longrepr)
    )
    if files:
        terminalreporter.section(
            f"{sum(files.values())} tests {NOT_STARTED}; the next commit starts at another place"
        )
        for file, count in sorted(files.items()):
            terminalreporter.line(f"{count:4d} {file}")
