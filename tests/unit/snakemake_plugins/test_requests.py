"""Test the requests of Snakemake's executor plugin: identities, resources, sources, and what a restarted call finds."""

from __future__ import annotations

import importlib.util
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

_PACKAGE = Path(__file__).resolve().parents[3] / "packaging/snakemake-executor-plugin-hibali"


def _load() -> Any:
    """Load the module without its package, which needs Snakemake."""
    path = _PACKAGE / "snakemake_executor_plugin_hibali/requests.py"
    spec = importlib.util.spec_from_file_location("snakemake_executor_plugin_requests", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


requests = _load()
PROPERTIES = {"rule": "one", "wildcards": {"n": "1", "m": "2"}, "jobid": 7, "resources": {"mem_mb": 1}}


def test_a_restarted_call_computes_the_same_identity() -> None:
    again = {"wildcards": {"m": "2", "n": "1"}, "rule": "one", "jobid": 3, "resources": {"mem_mb": 2}}
    assert requests.identify(PROPERTIES, "site", [("a", 1.0, 3)]) == requests.identify(
        again, "site", [["a", 1.0, 3]]
    )


@pytest.mark.parametrize(
    "changed", [({**PROPERTIES, "rule": "two"}, "site", 1), (PROPERTIES, "other", 1), (PROPERTIES, "site", 2)]
)
def test_what_changes_outputs_changes_the_identity(changed: tuple[Any, ...]) -> None:
    assert requests.identify(*changed) != requests.identify(PROPERTIES, "site", 1)


def test_resources_have_the_names_of_hibali() -> None:
    resources = {
        "_cores": 4,
        "mem_mb": 2000,
        "runtime": 90,
        "gpu": 1,
        "slurm_partition": "long",
        "tmpdir": "/tmp",
    }
    assert requests.job_options(4, resources) == {
        "cores": 4,
        "memory": "2000M",
        "time": 5400,
        "gpus": 1,
        "partition": "long",
    }


def test_the_same_sources_are_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, mode in (("Snakefile", 0o644), ("script.py", 0o755)):
        (tmp_path / name).write_text(name)
        (tmp_path / name).chmod(mode)
    packed = requests.pack(["script.py", "Snakefile", "../secret", "/etc/passwd"], {"config.toml": b"x"})
    (tmp_path / "Snakefile").touch()
    assert packed == requests.pack(["Snakefile", "script.py"], {"config.toml": b"x"})
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert {each.name: each.mode for each in archive} == {
            "Snakefile": 0o644,
            "script.py": 0o755,
            "config.toml": 0o644,
        }


def test_a_request_is_found_until_it_is_forgotten_or_its_sources_are_gone(tmp_path: Path) -> None:
    folder = tmp_path / "requests"
    first = requests.Requests(folder)
    values = {"sources": str(first.store_sources(b"one")), "command": "echo"}
    assert first.write("a", values) == values
    again = requests.Requests(folder)
    again.store_sources(b"two")
    assert again.find("a") == values
    assert again.find("b") is None
    again.forget("a")
    again.forget("a")
    assert again.find("a") is None
    requests.Requests(folder).store_sources(b"three")
    assert len(list(folder.glob("sources-*"))) == 1
    first.write("a", values)
    assert again.find("a") is None
    first.path("a").write_text("{")
    assert again.find("a") is None
