"""Whether a pilot can work at a site: a Python there that can load HyperQueue, found before anything is sent, and tried once it is."""

from __future__ import annotations

import json
import os
from importlib import resources
from typing import Any

from hibali.errors import RefusedError, UsageError
from hibali.locations import Location
from hibali.sites import Site, local_site
from hibali.text import printable
from runs.pilot.library import LIBC, MACHINE, PYTHON, SHA256, VERSION, find_library
from runs.put import as_text
from runs.stage import Cache
from transfers.far import Far

# One line for each of these that is there: what it is. -S leaves out what a site adds, which may take seconds.
_LOOK = r"""
for each; do
  command -v "$each" >/dev/null 2>&1 || continue
  "$each" -I -S -c '
import json, platform, sys
free = bool(getattr(sys, "_is_gil_enabled", lambda: True)()) is False
print(json.dumps([sys.executable, sys.version_info[:2], sys.platform, platform.machine(), platform.libc_ver(), free]))
' </dev/null 2>/dev/null
done
exit 0
"""
_NAMES = ("python3", *(f"python3.{minor}" for minor in range(20, PYTHON[1] - 1, -1)))
_HINT = (
    "Leave out --pilot: job arrays need nothing there. Or name a Python that fits as `python` of the site."
)


def program() -> bytes:
    """What runs at the site, in each allocation."""
    return resources.files("runs.pilot").joinpath("program.py").read_bytes()


def find_python(far: Far, site: Site) -> str:
    """The first Python of the site that can load the library, by its path. Raises `RefusedError` where there is none."""
    first = site.ssh.python if site.ssh else "python3"
    names = dict.fromkeys((first, *_NAMES))
    finished = far.run(("/bin/sh", "-c", _LOOK, "hibali", *names))
    seen: list[str] = []
    for line in finished.stdout.splitlines():
        found = _read(line)
        if found is None:
            continue
        path, lacking = found
        if not lacking:
            return path
        seen.append(f"{printable(path.encode('utf-8', 'replace'))} {lacking}")
    because = "; ".join(seen) or "none answered"
    raise RefusedError(
        "no-pilot-there",
        f"a pilot needs Python {'.'.join(map(str, PYTHON))} or later on Linux {MACHINE} with glibc {'.'.join(map(str, LIBC))}: {because}",
        about=site.name,
        hint=_HINT,
    )


def _read(line: bytes) -> tuple[str, str] | None:
    """The path of a Python, and what is wrong with it, "" for nothing; None for a line that says nothing of one."""
    try:
        path, version, system, machine, libc, free = json.loads(line)
        number = (int(version[0]), int(version[1]))
        known = tuple(int(part) for part in str(libc[1]).split(".")[:2])
    except (ValueError, TypeError, LookupError):
        return None
    if not isinstance(path, str) or not path.startswith("/") or not path.isprintable():
        return None
    if number < PYTHON:
        return path, f"is {number[0]}.{number[1]}"
    if (system, machine) != ("linux", MACHINE):
        return path, f"runs on {printable(f'{system} {machine}')}"
    if libc[0] != "glibc" or known < LIBC:
        return path, f"has {printable(f'{libc[0]} {libc[1]}')}"
    return path, "has no global lock" if free else ""


def stage_library(far: Far, site: Site, cache: Cache, python: str) -> str:
    """Where the library lies at the site when this returns, loaded there once. Raises `UsageError` where it cannot be."""
    path, identity = find_library()
    text = as_text(os.fsencode(path.absolute()))
    place = Location(local_site(), text, text, typed_local=True)
    staged = as_text(cache.bring_patiently(identity, place))
    finished = far.run((python, "-I", "-", "--check", staged, SHA256), stdin=program())
    said: Any = None
    if finished.exit_code == 0:
        try:
            said = json.loads(finished.stdout)
        except ValueError:
            said = None
    if not isinstance(said, dict) or said.get("hyperqueue") != f"v{VERSION}":
        because = printable((finished.stderr or finished.stdout).strip()[-500:])
        raise UsageError(
            "no-pilot-there",
            f"HyperQueue cannot be loaded by {python}: {because or finished.exit_code}",
            about=site.name,
            hint=_HINT,
        )
    return staged
