"""Test that a sweep is described as a crate, task by task."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench, doing
from tests.end_to_end.test_wrong_direction import refused
from tests.plugins.bundles.test_sweep_records import SPEAKING, swept
from tests.support.transfers import Transfers


def test_sweeps_are_exported_task_by_task(hibali: Any) -> None:
    bench = Bench(hibali, doing(SPEAKING))
    bench.add_local_site()
    b = swept(bench, "say=b,a,c")
    hibali("runs", "collect", b, "back", exit=0)
    made = hibali("runs", "export", b, "--ro-crate", "crate", "--json", exit=0).last
    assert made["runs"] == [b]
    crate = bench.folder / "crate"
    sums = crate / b / "outputs.sha256"
    subprocess.run(["sha256sum", "-c", str(sums)], cwd=bench.folder / "back", check=True, capture_output=True)
    assert len(sums.read_text().splitlines()) == 3
    document = json.loads((crate / "ro-crate-metadata.json").read_text())
    entities = {each["@id"]: each for each in document["@graph"]}
    for number, text in ((1, "b"), (2, "a"), (3, "c")):
        action = entities[f"#run-{b}-{number}"]
        assert action["@type"] == "CreateAction"
        assert action["result"] == {"@id": f"#{b}/output-{number}/out.txt"}
        assert {"@id": f"#{b}/{number}/say"} in action["object"]
        assert entities[f"#{b}/{number}/say"]["value"] == text
    assert hibali("bundle", "create", b, "-o", "x.zip", "--json", exit=2).last["code"] == "no-single-run"


@pytest.mark.parametrize(
    "words",
    [
        ("runs", "export", "20260102-030405-0a1b2c3d", "--ro-crate", "there"),
        ("bundle", "create", "20260102-030405-0a1b2c3d", "-o", "there"),
    ],
)
def test_the_name_of_a_site_without_a_colon_is_never_a_target(
    world: Transfers, words: tuple[str, ...]
) -> None:
    assert "there:" in refused(world, "site-without-colon", *words)["message"]
