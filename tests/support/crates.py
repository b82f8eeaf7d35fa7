"""What roc-validator says of an RO-Crate of ours; it has packages of its own, in .cache/crates."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.support.lacking import lacks

_PYTHON = Path(__file__).resolve().parents[2] / ".cache" / "crates" / "bin" / "python"
_JUDGE = Path(__file__).with_name("judge_crate.py")


def has_validator() -> bool:
    """Whether there is somebody to ask."""
    return _PYTHON.exists()


def judge(crate: Path) -> list[dict[str, Any]]:
    """Every issue with what is required, recommended or optional; skipped where the validator is not there."""
    import rocrate

    if not has_validator():
        lacks("roc-validator: sh tests/prepare.sh crates")
    terms = Path(rocrate.__file__).parent / "data" / "ro-crate.jsonld"
    finished = subprocess.run(
        [_PYTHON, _JUDGE, crate, terms], capture_output=True, text=True, check=False, timeout=120
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(finished.stdout)["issues"]
    return found


def required_issues(crate: Path) -> list[dict[str, Any]]:
    """What a crate has to be and is not."""
    return [each for each in judge(crate) if each["severity"] == "REQUIRED"]
