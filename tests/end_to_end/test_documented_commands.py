"""Test the commands of the documentation, line by line, against real servers; each line that is not run has a reason here."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from tests.support.documentation_home import DocumentationHome, lines_to_type, page
from tests.support.documented_commands import pages

# The beginnings of the lines of each page that are not run here, with the reason.
LEFT_OUT: dict[str, dict[str, str]] = {
    "bundles": {
        "hibali bundle run bet.zip --site juwels --input": "all inputs are in this bundle: test_bundle.py"
    },
    "caching": {
        "hibali run conform answers.json --site juwels --fast": "no fast storage is here: test_fast_storage.py"
    },
    "pipeline-sharing": {
        "hibali pipelines image": "tools run without images in this world: test_images.py",
        "hibali pipelines remotes add lab git@git.example.org:lab/pipelines.git --images": "the same remote again",
    },
    "plans-and-deletion": {
        "hibali rm -r 'juwels:@scratch/run7/core.*'": "a line before removes that folder: test_rm.py",
        "hibali pull --move": "the page has no such folder: test_push_move.py",
        "hibali drop": "its copies would have to be pushed first: tests/plugins/drop",
        "hibali pull juwels:@archive/data data": "as the lines before",
    },
    "transfers": {
        "hibali push sub-01 sub-02": "nothing of these names is in this world: test_several_sources.py",
        "hibali pull 'juwels:data/sub-*'": "as the line before",
        "hibali cp 'juwels:data/run-?": "as the line before",
    },
    "site-setup": {
        "hibali  ": "it only prints the first command, and ends with 2: test_cli_common.py",
        "hibali init   ": "it asks questions: test_first_steps.py",
        "hibali sites import ssh": "it reads what belongs to the account, wherever HOME is: test_sites_import.py",
        "hibali sites import https:": "no such server: test_sites_import.py",
    },
    "container-images": {
        "hibali pipelines image": "tools run without images in this world: test_images.py",
        "hibali pipelines stage": "as the line before",
    },
    "pipelines": {
        "hibali pipelines add https:": "no such server: tests/unit/registry",
        "hibali pipelines add git+https:": "as the line before",
        "hibali pipelines add zenodo": "as the line before",
        "hibali pipelines add cbrain:": "as the line before",
        "hibali pipelines add niwrap:": "as the line before",
        "hibali pipelines add bosh:": "bosh has no cached descriptors on this machine: tests/unit/registry",
        "hibali pipelines example fsl_bet --ask": "it asks questions: test_example_ask.py",
        "hibali pipelines create 'python3 segment.py' --ask": "it asks questions: test_pipeline_formats.py",
        "hibali pipelines search --zenodo": "no such server: test_zenodo.py",
        "hibali pipelines publish": "as the line before",
    },
    "sharing": {
        "hibali share add": "it needs the login of another person: test_shares.py",
        "hibali share rm": "as the line before",
    },
    "schedules": {"hibali schedule notify --mail": "it would be sent: tests/plugins/schedules"},
    "performance": {
        "hibali sync --direct": "the account at the first site has to know the second: test_direct.py",
    },
    "object-stores": {
        "hibali cp --exact-key": "the server of this world has no such keys: test_s3_odd_keys.py",
        "hibali rm --exact-key": "as the line before",
    },
    "archives": dict.fromkeys(
        ("hibali ls -R doi:", "hibali pull doi:", "hibali verify doi:", "hibali cat doi:"),
        "no such server: tests/plugins/archives",
    ),
    "webdav": {
        "hibali sites add openneuro": "no web server is here: test_url.py",
        "hibali pull openneuro:": "as the line before",
        "hibali sites add cloud": "no WebDAV server is here: test_webdav.py",
        "hibali push results cloud:": "as the line before",
    },
    "monitoring": {
        "hibali runs watch --notify": "no such server: test_runs_watch.py",
        "hibali dashboard": "it runs until Ctrl-C: test_dashboard.py",
        "hibali status --watch": "it runs until Ctrl-C: test_status.py",
    },
    "notebooks": {"hibali notebook": "it runs until its job ends: test_notebook_job.py"},
    "runs": {
        "hibali notebook": "it runs until its job ends: test_notebook_job.py",
        "hibali runs tunnel": "the runs of this page have ended: test_run_tunnel.py",
    },
}
# Commands that a reader of this page has run before.
DONE_BEFORE: dict[str, tuple[str, ...]] = {
    "compute-nodes": ("push data juwels:@scratch/sections",),
    "history": ("push data juwels:@scratch/data",),
    "pipelines": ("pipelines add tools/", "pipelines trust fsl_bet@1.1.0"),
    "transfers": ("push data juwels:@scratch/data",),
    "verification": (
        "push data juwels:@scratch/data",
        "push data juwels:study/data",
        "push data juwels:@archive",
    ),
    "plans-and-deletion": (
        "push data juwels:@scratch/run7",
        "push data juwels:study/run7",
        "plan data juwels:@scratch/data -o theirs.plan",
    ),
    "monitoring": (
        "push data juwels:@scratch/data",
        "run conform answers.json --site juwels --wait",
        "run bet answers.json --site juwels --wait --name sub-02",
    ),
    "bundles": ("run fsl_bet answers.json --site juwels --wait",),
    "caching": ("run conform answers.json --site juwels --wait",),
}


@pytest.fixture
def world(hibali: Any, slurm: Any, object_store: Any) -> DocumentationHome:
    return DocumentationHome(hibali, slurm, object_store)


# Pages whose lines are run by other tests, or cannot be run here.
ELSEWHERE: dict[str, str] = {
    "bigbrain": "EBRAINS and CBRAIN: test_bigbrain_page.py",
    "cbrain": "test_cbrain.py",
    "datalad": "DataLad: test_datasets.py",
    "git-annex": "test_special_remote.py",
    "globus": "tests/plugins/globus",
    "gsi": "test_gsi.py",
    "hpss": "tests/plugins/globus",
    "xrootd": "tests/plugins/fsspec_sites/test_xrootd.py",
    "openneuro": "test_drafts.py",
    "nipoppy": "nipoppy: tests/plugins/nipoppy",
}
PAGES = sorted(path.stem for path in pages() if lines_to_type(path) and path.stem not in ELSEWHERE)
OF_THEIR_OWN = frozenset({"README", "bucket-to-cluster"})  # their text says where to run them


@pytest.mark.heavy
@pytest.mark.parametrize("name", PAGES)
def test_documented_commands_work(world: DocumentationHome, name: str) -> None:
    if name not in OF_THEIR_OWN:
        world.configure()
    world.add_pipelines()
    world.fill_bucket()
    for line in DONE_BEFORE.get(name, ()):
        world.hibali(*line.split(), exit=0)
    lines, left_out = lines_to_type(page(name)), tuple(LEFT_OUT.get(name, ()))
    typed = [line for line in lines if not line.startswith(left_out)]
    bad = [each for each in left_out if not any(line.startswith(each) for line in lines)]
    with world.open_archives() if name == "archives" else nullcontext():
        for line, code, printed in world.type_all(typed):
            if code != 0:
                bad.append(f"{line}\n  -> {code}\n{printed}")
    assert not bad, "\n".join(bad)
