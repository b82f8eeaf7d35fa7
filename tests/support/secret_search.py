"""Search the arguments of all processes, hibali's files and its output for planted secrets."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def watch_process_arguments(secrets: list[str]) -> Iterator[list[str]]:
    """Read the arguments of all processes repeatedly; yield a list of those with a secret."""
    found: list[str] = []
    stop = threading.Event()

    def search_processes() -> None:
        while not stop.is_set():
            for process in Path("/proc").iterdir():
                if process.name.isdigit():
                    try:
                        words = (process / "cmdline").read_bytes().decode("latin-1")
                    except OSError:
                        continue
                    found.extend(words for secret in secrets if secret in words)

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
