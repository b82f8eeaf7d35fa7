"""HyperQueue as it is installed here: one shared object, which goes to sites like an input, and is the one we know or none."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from hibali.errors import RefusedError, UsageError
from runs.identity import Identity, identify_local

VERSION = "0.27.0"
MACHINE, LIBC = "x86_64", (2, 28)  # as its wheel says: manylinux_2_28_x86_64
PYTHON = (3, 9)  # abi3 from 3.9 on
# hyperqueue/hyperqueue.abi3.so, by the RECORD of hyperqueue-0.27.0-cp39-abi3-manylinux_2_28_x86_64.whl
SHA256 = "9bc593684ddd3ca7192d05585c85fc55c8f5588ca29a61d6effa374d3dd4065b"


def find_library() -> tuple[Path, Identity]:
    """The file and what it is. Raises `UsageError` where it is not installed, `RefusedError` where it is another one.

    The package is not imported: what it runs on here does not matter, only at the site.
    """
    spec = find_spec("hyperqueue")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    path = next((found for each in folders if (found := Path(each, "hyperqueue.abi3.so")).is_file()), None)
    if path is None:
        raise UsageError(
            "no-hyperqueue",
            "a pilot needs HyperQueue, which is not installed here",
            about="--pilot",
            hint=f"pip install 'hibali[pilot]' (hyperqueue {VERSION}); or leave out --pilot: job arrays need nothing.",
        )
    identity = identify_local(path)
    if identity.digest != SHA256:
        raise RefusedError(
            "other-hyperqueue",
            f"this is not the HyperQueue {VERSION} that hibali knows: its sha256 is {identity.digest}",
            about=os.fspath(path),
            hint=f"pip install --force-reinstall hyperqueue=={VERSION}",
        )
    return path, identity
