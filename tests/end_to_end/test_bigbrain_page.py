"""Test the page from EBRAINS to JUWELS to CBRAIN, line by line: doubles of EBRAINS and CBRAIN, a real Slurm and a real object store."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.services import cbrain as double
from tests.services.cbrain import CbrainDouble
from tests.support.documentation_home import DocumentationHome, lines_to_type, page

BUCKET = "p22717-hbp-d000070_BigBrain-selected_1um_scans_pub"
SECTIONS = {f"sections/B20_07{number:02}.tif": b"section %d\n" % number * 1000 for number in range(3)}


def tool(name: str, file: str, output: str) -> dict[str, Any]:
    """Return a tool that counts the bytes of a file."""
    return {
        "name": name,
        "tool-version": "1.0",
        "schema-version": "0.5",
        "description": "Counts bytes.",
        "command-line": f"wc -c <[{file.upper()}] >{output}",
        "inputs": [{"id": file, "name": file, "type": "File", "value-key": f"[{file.upper()}]"}],
        "output-files": [{"id": "out", "name": "out", "path-template": output}],
    }


def count(running: double.RunningTask) -> double.Outputs:
    _, content = running.inputs[running.invoke["table"]]
    return {"out": [(f"summary-{running.id}.txt", b"%d\n" % len(content))]}


@pytest.mark.heavy
def test_sections_go_from_ebrains_to_juwels_and_results_to_cbrain(
    hibali: Any, slurm: Any, object_store: Any, ebrains: Any, cbrain: CbrainDouble
) -> None:
    world = DocumentationHome(hibali, slurm, object_store)
    bucket = object_store.bucket().name
    ebrains.add_bucket(bucket, public=True)
    for key, content in {**SECTIONS, "sections/B20_0100.tif": b"another"}.items():
        object_store.client.put_object(Bucket=bucket, Key=key, Body=content)
    lab = cbrain.add_provider("lab")
    summary = tool("summary", "table", "summary.txt")
    cbrain.add_tool("summary", summary)
    cbrain.runner = count
    (world.folder / "section-stats.json").write_text(
        json.dumps(tool("section-stats", "section", "stats.txt"))
    )
    (world.folder / "summary.json").write_text(json.dumps(summary))
    (world.folder / "section.json").write_text('{"section": "juwels:bigbrain/B20_0700.tif"}')
    (world.folder / "summary-values.json").write_text('{"table": "mcgill:@lab/stats.txt"}')
    world.replacements |= {
        f"--ebrains {BUCKET}": f"--ebrains {bucket} --set ebrains.url={ebrains.url}",
        # a login at a prompt is tested in test_cbrain.py
        "https://portal.cbrain.mcgill.ca": f"{cbrain.url} --set cbrain.login=me"
        f' --set \'cbrain.password_command=["echo", "{double.PASSWORD}"]\'',
    }
    bad = [
        f"{line}\n  -> {code}\n{printed}"
        for line, code, printed in world.type_all(lines_to_type(page("bigbrain")))
        if code != 0
    ]
    assert not bad, "\n".join(bad)
    size = len(SECTIONS["sections/B20_0700.tif"])
    assert (world.folder / "results/stats.txt").read_text().strip() == str(size)
    assert [each.type for each in cbrain.named(lab)["stats.txt"]] == ["TextFile"]
    [collected] = (world.folder / "summary").iterdir()
    assert collected.read_text().strip() == str(len(f"{size}\n"))
    sent = sorted(path.name for path in (world.folder / "juwels/me/bigbrain").glob("*.tif"))
    assert sent == ["B20_0700.tif", "B20_0701.tif", "B20_0702.tif"]
    assert (cbrain.refused, ebrains.refused) == ([], [])
