"""Validate RO-Crates with roc-validator, which has its own packages in .cache/crates."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.support.requirements import require_prepared

_PYTHON = Path(__file__).resolve().parents[2] / ".cache" / "crates" / "bin" / "python"
_SCRIPT = Path(__file__).with_name("validate_crate.py")


def has_validator() -> bool:
    """Return whether the validator is installed."""
    return _PYTHON.exists()


def crate_issues(crate: Path, profile: str = "process-run-crate") -> list[dict[str, Any]]:
    """Return all required, recommended and optional issues; skip the test without the validator."""
    import rocrate

    require_prepared(_PYTHON, "crates")
    terms = Path(rocrate.__file__).parent / "data" / "ro-crate.jsonld"
    finished = subprocess.run(
        [_PYTHON, _SCRIPT, crate, terms, profile], capture_output=True, text=True, check=False, timeout=120
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(finished.stdout)["issues"]
    return found


def required_issues(crate: Path, profile: str = "process-run-crate") -> list[dict[str, Any]]:
    """Return the violations of required rules."""
    return [each for each in crate_issues(crate, profile) if each["severity"] == "REQUIRED"]
