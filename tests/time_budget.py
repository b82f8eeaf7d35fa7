"""Ends a long run of tests in time: what is not begun by then is skipped by name, and every commit begins elsewhere.

Why, and what it does not excuse: docs/decisions/44-tests.md.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter

import pytest

UNTIL = "HIBALI_TESTS_UNTIL"  # seconds since the epoch; the environment reaches every worker
ORDER = "HIBALI_TESTS_ORDER"  # any text, such as a commit: another one is another order
NOT_BEGUN = "not begun, as the time was over"


def place_in_order(item: pytest.Item, order: str) -> tuple[bool, str]:
    """Returns what to sort by: the tests marked `early` first, then files in an order that `order` decides, each as it stands."""
    file = item.nodeid.partition("::")[0]
    return item.get_closest_marker("early") is None, hashlib.sha256(
        f"{order} {file}".encode()
    ).hexdigest() if order else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = os.environ.get(ORDER, "")
    items.sort(key=lambda item: place_in_order(item, order))  # stable: the order within a file stays


def pytest_runtest_setup(item: pytest.Item) -> None:
    until = float(os.environ.get(UNTIL, "inf"))
    if time.time() > until and item.get_closest_marker("early") is None:
        pytest.skip(NOT_BEGUN)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    files = Counter(
        report.nodeid.partition("::")[0]
        for report in terminalreporter.stats.get("skipped", [])
        if NOT_BEGUN in str(report.longrepr)
    )
    if files:
        terminalreporter.section(f"{sum(files.values())} tests {NOT_BEGUN}; the next commit begins elsewhere")
        for file, count in sorted(files.items()):
            terminalreporter.line(f"{count:4d} {file}")
