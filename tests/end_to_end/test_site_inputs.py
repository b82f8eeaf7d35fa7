"""Test inputs and outputs at sites: in roots that compute nodes do not see, on tape, and behind symlinks."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench, doing
from tests.services.processes import end_all
from tests.services.slurm import start_slurm, this_node
from tests.support.trees import random_bytes


@pytest.fixture
def archive(hibali: Any, ssh_server: Any) -> tuple[Bench, Path]:
    """Return a pipeline at an ssh site, and its archive."""
    bench = Bench(hibali)
    folder = bench.folder / "far"
    (folder / "archive").mkdir(parents=True)
    bench.add_site(
        "far",
        f'kind = "ssh"\nwork = "{folder}/work"\n'
        f'roots = {{ home = "{folder}", archive = {{ path = "{folder}/archive", nodes = false }} }}\n'
        f'[sites.far.ssh]\nhost = "{ssh_server.host}"\ncommand = {json.dumps(list(ssh_server.command))}\n'
        '[sites.far.scheduler]\nname = "direct"\n[sites.far.limits]\npoll = "1s"\nlogin_interval = "0s"',
    )
    return bench, folder / "archive"


def run(bench: Bench, source: str) -> str:
    ended = bench.run(bench.answers(**{"in": source}), "--wait", "--new", exit=0)
    assert ended.last["state"] == "SUCCEEDED"
    return str(ended.last["id"])


def output_of(bench: Bench, run_id: str) -> bytes:
    return (bench.folder / "far/work/runs" / run_id / "work/out.txt").read_bytes()


def test_an_input_in_a_hidden_root_is_staged_at_the_site_once(archive: tuple[Bench, Path]) -> None:
    bench, folder = archive
    content = random_bytes(1, 3_000_000)
    (folder / "scan").write_bytes(content)
    (folder.parent / "link").symlink_to(folder / "scan")
    for source, staged in (("far:@archive/scan", 1), ("far:@archive/scan", 1), ("far:@home/link", 2)):
        run_id = run(bench, source)
        assert output_of(bench, run_id) == content
        assert "/archive/" not in (bench.folder / "far/work/runs" / run_id / "job.sh").read_text()
        receipts = [
            line for line in bench.hibali("history", "--json").lines if line.get("operation") == "stage"
        ]
        assert [line["bytes_moved"] for line in receipts] == [len(content)] * staged
    cached = [path for path in (folder.parent / "work/cache").rglob("*") if is_copy(path, content)]
    assert len(cached) == 1


def is_copy(path: Path, content: bytes) -> bool:
    return path.is_file() and not path.is_symlink() and path.read_bytes() == content


@pytest.mark.heavy
def test_a_changed_folder_is_staged_again(archive: tuple[Bench, Path]) -> None:
    """A folder's own times do not change with the content of its files."""
    bench, folder = archive
    (folder / "scans").mkdir()
    first = folder / "scans/first"
    bench = Bench(bench.hibali, {**doing("cat [IN]/* >[OUT]"), "name": "Read Folder"})
    bench.site = "far"
    for content in (b"one\n", b"two\n"):
        first.write_bytes(content)
        assert output_of(bench, run(bench, "far:@archive/scans")) == content


def test_an_input_on_tape_is_recalled_first(archive: tuple[Bench, Path]) -> None:
    bench, folder = archive
    with (folder / "scan").open("wb") as stream:
        os.truncate(stream.fileno(), 2_000_000)  # no blocks on disk, as after a migration to tape
    assert output_of(bench, run(bench, "far:@archive/scan")) == bytes(2_000_000)


def test_a_work_folder_that_nodes_do_not_see_is_refused_before_a_run(archive: tuple[Bench, Path]) -> None:
    bench, folder = archive
    config = bench.hibali.home.config
    (folder / "work").mkdir(mode=0o700)
    text = config.read_text()
    config.write_text(text.replace(f'work = "{folder.parent}/work"', f'work = "{folder}/work"'))
    refused = bench.run(bench.answers(), exit=2)
    assert refused.last["code"] == "work-not-on-nodes"
    config.write_text(text.replace(f'work = "{folder.parent}/work"', 'work = "@archive/work"'))
    refused = bench.run(bench.answers(), exit=2)
    assert "compute nodes do not see" in str(refused)


def test_an_input_from_another_site_is_the_content_behind_its_symlink(archive: tuple[Bench, Path]) -> None:
    bench, folder = archive
    (folder / "scan").write_bytes(b"content\n")
    (folder / "link").symlink_to("scan")
    work = bench.add_local_site("here")
    ended = bench.run(bench.answers(**{"in": "far:@archive/link"}), "--wait", exit=0)
    assert (work / "runs" / ended.last["id"] / "work/out.txt").read_bytes() == b"content\n"


@pytest.mark.heavy
@pytest.mark.parametrize("site", ["far", "other"])
def test_outputs_are_collected_at_the_site(hibali: Any, ssh_server: Any, site: str) -> None:
    bench = Bench(hibali, {**doing("head -c 3000000 /dev/zero >[OUT]"), "name": "Zeros"})
    folder = bench.folder / "far"
    (folder / "archive").mkdir(parents=True)
    for name in ("far", "other"):
        bench.add_site(
            name,
            f'kind = "ssh"\nwork = "{folder}/{name}-work"\n'
            f'roots = {{ archive = {{ path = "{folder}/archive", nodes = false }} }}\n'
            f'[sites.{name}.ssh]\nhost = "{ssh_server.host}"\ncommand = ["ssh", "-F", "{ssh_server.config}"]\n'
            f'[sites.{name}.scheduler]\nname = "direct"\n[sites.{name}.limits]\npoll = "1s"\nlogin_interval = "0s"',
        )
    bench.site = "far"
    target = f"{site}:@archive/results"
    answer = bench.run(bench.answers(), "--wait", "--collect", target, exit=0)
    assert [path.stat().st_size for path in (folder / "archive/results").rglob("out*")] == [3_000_000]
    (receipt,) = [line for line in answer.lines if line["kind"] == "receipt"]
    assert (receipt["bytes_moved"], receipt["bytes_sent"], receipt["mover"]) == (3_000_000, 0, "direct")


def test_outputs_of_a_sweep_are_collected_at_the_site(archive: tuple[Bench, Path]) -> None:
    """They get other names there: each task has a folder of its own."""
    bench, folder = archive
    words = ("--param", "say=one,two", "--wait", "--collect", "far:@archive/results")
    answer = bench.run(bench.answers(), *words, "--new", exit=0)
    (receipt,) = [line for line in answer.lines if line["kind"] == "receipt"]
    assert (receipt["files_moved"], receipt["bytes_sent"]) == (2, 0)
    assert len([path for path in (folder / "results").rglob("out.txt") if path.stat().st_size]) == 2


@pytest.mark.heavy
@pytest.mark.skipif(os.geteuid() != 0, reason="hiding a folder from a node needs root")
def test_a_node_that_truly_lacks_the_root_gets_its_input_and_the_archive_its_output(
    hibali: Any,
) -> None:
    """Slurm's node has an empty filesystem where the login node has the archive: without `nodes = false` the job finds no input."""
    bench = Bench(hibali, {**doing("cat [IN] >[OUT]"), "name": "Copy"})
    session = Path(tempfile.mkdtemp(prefix="hib-"))
    session.chmod(0o711)  # munge's socket must be reachable
    archive = bench.folder / "archive"
    archive.mkdir()
    (archive / "scan").write_bytes(b"content\n")
    hide = (
        "unshare",
        "--mount",
        "--propagation",
        "slave",
        "sh",
        "-c",
        f'mount -t tmpfs none {archive} && exec "$@"',
    )
    node = replace(this_node(), inside=(*hide, "sh"))
    try:
        bench.add_slurm_site(start_slurm(session, session / "own", nodes=[node]))
        config = hibali.home.config
        plain = config.read_text()
        bench.run(bench.answers(**{"in": f"cluster:{archive}/scan"}), "--wait", exit=7)
        hidden = f'roots = {{ archive = {{ path = "{archive}", nodes = false }} }}\nwork = '
        config.write_text(plain.replace("work = ", hidden, 1))
        answers = bench.answers(**{"in": "cluster:@archive/scan"})
        bench.run(answers, "--wait", "--new", "--collect", "cluster:@archive/results", exit=0)
        (result,) = (archive / "results").rglob("out.txt")
        assert result.read_bytes() == b"content\n"
    finally:
        end_all(session)
        shutil.rmtree(session, ignore_errors=True)
