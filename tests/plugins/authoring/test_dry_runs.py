"""Test that `hibali run --dry-run` of an example has the command of `bosh exec simulate`, with every difference explained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hibali.config.settings import Settings
from hibali_plugins.authoring.example import make_example
from registry.descriptor import read_descriptor
from tests.contracts.corpus import CORPUS, read_corpus
from tests.contracts.test_dry_runs import Case, compare_all

# Examples of the corpus, by the end of the name: why the arguments differ, or are missing.
DIFFERENCES = {
    "simulate/list_separator.json minimal": "the list-separator holds a quote: the reference's line is no shell command",
    "simulate/list_separator.json complete": "the same",
    "data/descriptor-deprecated.json complete": 'the reference takes "mutually-exclusive": false for true and refuses',
}


@pytest.mark.heavy
@pytest.mark.skipif(not (CORPUS / "index.tsv").exists(), reason=f"no corpus at {CORPUS}")
def test_dry_runs_of_examples_have_the_arguments_of_the_reference_or_a_reason(
    settings: Settings, tmp_path: Path
) -> None:
    cases = []
    for item in read_corpus():
        if not item.valid:
            continue
        raw = item.descriptor.read_bytes()
        for word, complete in (("minimal", False), ("complete", True)):
            values = make_example(read_descriptor(raw, item.name), complete=complete)
            # the reference ignores an empty invocation
            cases += [Case(f"{item.name} {word}", json.loads(raw), values)] if values else []
    found, refused = compare_all(cases, settings, tmp_path)
    assert refused == {}
    assert found.keys() == DIFFERENCES.keys(), "explain what differs, and remove what does not any more"
