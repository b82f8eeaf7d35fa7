"""Test the keys of runs and sweeps: runs of older versions are found by them, so that they must never change."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

import pytest

from hibali.config.model import local_site
from hibali.locations import path_at
from registry.descriptor import read_descriptor
from registry.invocation import Invocation
from runs.containers.bare import CONTAINER
from runs.identity import Identity
from runs.launch import request_key
from runs.model import Input
from runs.request import ComputeSite, Request, TaskRequest, Workload, workload_key
from runs.schedulers.slurm import SCHEDULER
from tests.end_to_end.run_tools import DESCRIPTOR

PIPELINE = replace(read_descriptor(json.dumps(DESCRIPTOR).encode(), "tool.json"), digest="d" * 64)
WRITTEN = {"in": "a.nii", "say": "é"}
RUN = Invocation({**WRITTEN, "out": "out.txt", "sleep": 0.5, "code": 0}, WRITTEN)
COMMON = Invocation({"in": "a.nii"}, {"in": "a.nii"})
FIRST = "20260102-030405-0a1b2c3d"
TASKS = tuple(
    TaskRequest(
        number, {"say": say}, Invocation({**COMMON.values, "say": say}, {**COMMON.values, "say": say})
    )
    for number, say in ((1, "x"), (2, "y"))
)


def key(invocation: Invocation = RUN, site: str = "juwels", **workload: Any) -> str:
    """Return the key of a request at a site; no input is there, so that it is not contacted."""
    place = replace(local_site(), name=site)
    made = Workload(
        PIPELINE,
        invocation,
        (Input("in", 0, "a.nii"),),
        (path_at(place, b"/a.nii"),),
        (Identity("sha256:" + "a" * 64, "a" * 64, {b"": "a" * 64}),),
        **workload,
    )
    return request_key(Request(made, ComputeSite(place, SCHEDULER, CONTAINER)), cast("Any", None))


@pytest.mark.parametrize(
    ("invocation", "workload", "recorded"),
    [
        (RUN, {}, "1a98f979e07b7faa308c16f2d9d556d7180919559697194bb9ed6fb261d29645"),
        (RUN, {"name": "night"}, "51097658acc7b9a26f805a6fb1aa0705434c263098d77db2480ef2c979b00c9e"),
        (RUN, {"after": (FIRST,)}, "4f84a3b7e18a4c53345fb04ce64afb39c5dba4ce8855187b53f0985519232c1d"),
        (RUN, {"origin": FIRST}, "3d6d215027800565d7afe8ca0e25f39011caf5c2235e12919bc79acb2410e2f8"),
        (COMMON, {"tasks": TASKS}, "1609807b8c6e6cccb720541e48f86b6a6ee690d26eaeb00b347b22c058f76239"),
        (
            COMMON,
            {"tasks": TASKS, "name": "night"},
            "ad1102931732241b5aaca7f569b0fe0609689c7e52248b9844941caa1ceb21a8",
        ),
        (
            COMMON,
            {"tasks": TASKS, "origin": FIRST},
            "add995fcda2fae26d7d8de3d31bf216155d574d40c0d6cb66edcd96471c474fe",
        ),
        (
            COMMON,
            {"tasks": TASKS, "after": (FIRST,)},
            "1609807b8c6e6cccb720541e48f86b6a6ee690d26eaeb00b347b22c058f76239",
        ),
    ],
)
def test_a_key_is_the_one_that_older_versions_recorded(
    invocation: Invocation, workload: dict[str, Any], recorded: str
) -> None:
    assert key(invocation, **workload) == recorded


def test_the_key_of_a_command_for_several_sites_has_all_of_them() -> None:
    texts = ["sha256:" + "a" * 64]
    assert workload_key(Workload(PIPELINE, RUN), texts, "juwels|local") == key(site="juwels|local")
    assert workload_key(Workload(PIPELINE, COMMON, tasks=TASKS), texts, "juwels|local") == key(
        COMMON, "juwels|local", tasks=TASKS
    )
