"""How bundles are shown, and how a repeated run compares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hibali.text import path_fields, printable
from hibali_cli.options import Common
from hibali_cli.output import Cell
from runs.bundles.read import Bundle
from runs.bundles.record import PackedInput
from runs.compare import Compared, Fate
from runs.model import Run


def show_bundle(common: Common, file: Path, bundle: Bundle) -> None:
    """One bundle as a JSON line or as names and values."""
    record = bundle.record
    if common.json:
        image = bundle.image
        fields: dict[str, Any] = {
            **path_fields(str(file).encode("utf-8", "surrogateescape"), "file"),
            "bytes": file.stat().st_size,
            "content": bundle.content,
            **record.to_fields(),
            "image": None
            if image is None
            else {"digest": image.digest, "id": image.id, "included": bool(bundle.image_file)},
        }
        common.output.record("bundle", fields, flush=True)
        return
    common.output.pairs(_pairs(bundle))


def _pairs(bundle: Bundle) -> dict[str, Cell]:
    record, run, left, image = bundle.record, bundle.record.run, bundle.record.outputs, bundle.image
    shown: dict[str, Cell] = {
        "pipeline": f"{record.name}@{record.version}",
        "digest": f"sha256 {record.digest}",
        "bundle": f"sha256 {bundle.content}",
        "image": f"{image.digest}{'' if bundle.image_file else ' (not in it)'}" if image else None,
        "made by": f"hibali {record.hibali}",
    }
    for each in record.inputs:
        shown[f"input {each.member.split('/')[1]}"] = _input_words(each)
    if run is not None:
        ended = f" with exit code {run.exit_code}" if run.exit_code is not None else ""
        shown |= {
            "run": f"{run.id} {run.state}{ended}",
            "at": f"{run.site} ({run.scheduler}, {run.container})",
            "ended": run.ended or None,
        }
    if left is not None:
        shown["outputs"] = f"{left.files} files, {left.bytes} bytes"
        for problem in left.problems:
            shown[f"not there: {problem['path']}"] = problem["message"]
    return shown


def _input_words(each: PackedInput) -> str:
    size = f"{each.bytes} bytes" if each.type == "file" else f"{each.files} files, {each.bytes} bytes"
    where = "" if each.included else f", not in it; it lay at {each.location}"
    return f"{each.id}: {each.member} ({size}{where})"


def show_comparison(
    common: Common, run: Run, bundle: Bundle, target: str, compared: Sequence[Compared], code: int
) -> None:
    """Every output with its fate, then the counts."""
    counts = Counter(each.fate for each in compared)
    recorded = bundle.record.run is not None
    if common.json:
        for each in compared if recorded else ():
            digests = {"recorded": each.recorded or None, "found": each.found or None}
            common.output.record("compared", {**path_fields(each.path), "fate": each.fate, **digests})
        fields = {str(fate): counts[fate] if recorded else 0 for fate in Fate}
        about = {"bundle": bundle.content, "run": run.id, "target": target, "recorded": recorded}
        common.output.record("comparison", {**about, **fields, "exit": code}, flush=True)
        return
    if not recorded:
        common.output.say("The bundle is of no run: there is nothing to compare with.")
        return
    for each in compared:
        common.output.text(f"{each.fate:<9}  {printable(each.path)}\n")
    others = ", ".join(f"{counts[fate]} {fate}" for fate in Fate if fate is not Fate.EQUAL and counts[fate])
    said = f"{counts[Fate.EQUAL]} of {len(bundle.outputs)} outputs are equal{'; ' + others if others else ''}"
    common.output.say(f"{said}; they are in {target}")
