"""Search the arguments of the processes of a test, hibali's files and its output for planted secrets."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.services.fixtures import SESSION
from tests.services.processes import is_of_this_test


@contextmanager
def watch_process_arguments(secrets: list[str]) -> Iterator[list[str]]:
    """Read the arguments of the test's processes repeatedly; yield a list of those with a secret.

    Others on this machine, such as a shell in which somebody searches for it, are left out.
    """
    found: list[str] = []
    session = Path(os.environ[SESSION])
    stop = threading.Event()

    def search_processes() -> None:
        while not stop.is_set():
            for process in Path("/proc").iterdir():
                if process.name.isdigit():
                    try:
                        words = (process / "cmdline").read_bytes().decode("latin-1")
                    except OSError:
                        continue
                    if any(secret in words for secret in secrets) and is_of_this_test(
                        int(process.name), session
                    ):
                        found.append(words)

    thread = threading.Thread(target=search_processes)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def check_secrets_absent(secrets: list[str], hibali: Any, *answers: Any, but: Sequence[Path] = ()) -> None:
    """Assert that neither the answers nor hibali's files contain the secrets, except the files `but`."""
    for answer in answers:
        for secret in secrets:
            assert secret.encode() not in answer.out + answer.err
    for folder in (hibali.home.folder, hibali.home.runtime):
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink() and path not in but:
                content = path.read_bytes()
                for secret in secrets:
                    assert secret.encode() not in content, path
