"""Test the cache of a site: inputs are transferred once, modified copies are detected, and tools cannot change it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.image_tools import RUNTIMES, Tool, ready
from tests.end_to_end.run_tools import Bench, doing

pytestmark = pytest.mark.timeout(1200)  # many commands one after the other, on a shared machine
WRITES = "chmod u+w [IN]; (echo more >>[IN]); (rm -f [IN]); cat [IN] >[OUT]; true"


def bytes_transferred(bench: Bench) -> int:
    """Return how many bytes all operations of this test transferred."""
    folder = bench.hibali.home.state / "operations"
    records = [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    return sum(record["bytes_moved"] for record in records if record.get("kind") == "receipt")


def cached(work: Path) -> Path:
    """Return the only entry of a cache."""
    [path] = [each for each in (work / "cache" / "sha256").glob("*/*") if len(each.name) == 64]
    return path


def fill(path: Path, size: int) -> Path:
    """Write a file of that size in pieces."""
    piece = os.urandom(min(size, 1 << 20))
    with path.open("wb") as stream:
        while stream.tell() < size:
            stream.write(piece[: size - stream.tell()])
    return path


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def change_in_place(path: Path) -> None:
    """Change one byte and restore the times."""
    found = path.stat()
    with path.open("r+b") as stream:
        byte = stream.read(1)
        stream.seek(0)
        stream.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (found.st_size, found.st_mtime_ns)


def add_ssh_site(bench: Bench, server: Any) -> Path:
    """Add an ssh site, and return its work folder."""
    words = ", ".join(f'"{word}"' for word in server.command)
    bench.add_site(
        "login",
        f'kind = "ssh"\nwork = "{bench.folder}/far"\n[sites.login.ssh]\nhost = "{server.host}"\n'
        f'command = [{words}]\n[sites.login.scheduler]\nname = "direct"\n[sites.login.limits]\npoll = "1s"',
    )
    return bench.folder / "far"


def bytes_of_next_run(bench: Bench) -> int:
    """Return how many bytes one more run transfers; delete its own copy of the input, because there may be no space for many."""
    before = bytes_transferred(bench)
    run = bench.hibali(*bench.line("answers.json", "--wait"), "--json", exit=0, timeout=600).last
    shutil.rmtree(Path(run["folder"]) / "inputs")
    return bytes_transferred(bench) - before


def test_a_second_run_transfers_nothing_and_damage_is_detected(hibali: Any) -> None:
    bench = Bench(hibali, doing("cmp [IN] [MORE] && echo same >[OUT]"))
    work = bench.add_local_site()
    size = 3 << 20
    there = fill(bench.folder / "large", size)
    (bench.folder / "answers.json").write_text(json.dumps({"in": "large", "more": [f"here:{there}"]}))
    assert [bytes_of_next_run(bench) for _ in range(2)] == [size, 0]
    for damage in (cut, change_in_place):
        damage(cached(work))
        assert bytes_of_next_run(bench) == size
        assert cached(work).stat().st_size == size


@pytest.mark.heavy
def test_a_gibibyte_is_transferred_once_and_repaired_over_ssh(hibali: Any, ssh_server: Any) -> None:
    bench = Bench(hibali, doing("cmp [IN] [MORE] && echo same >[OUT]"))
    work = add_ssh_site(bench, ssh_server)
    size = 1 << 30
    there = fill(bench.folder / "large", size)
    (bench.folder / "answers.json").write_text(json.dumps({"in": "large", "more": [f"login:{there}"]}))
    assert [bytes_of_next_run(bench) for _ in range(2)] == [size, 0]
    for damage in (cut, change_in_place):
        damage(cached(work))
        assert bytes_of_next_run(bench) == size
    cached(work).unlink()
    assert [bytes_of_next_run(bench) for _ in range(2)] == [size, 0]


def with_image(name: str) -> dict[str, Any]:
    return {**doing(WRITES), "container-image": {"type": "docker", "image": name}}


@pytest.mark.parametrize("word", ["bare", *RUNTIMES])
def test_a_tool_that_writes_to_its_input_does_not_change_the_cache(
    word: str, request: pytest.FixtureRequest, hibali: Any
) -> None:
    more: tuple[str, ...] = ()
    descriptor = doing(WRITES)
    if word != "bare":
        ready(word, request, hibali)
        tool: Tool = request.getfixturevalue("tool")
        more = ("--image", str(tool.archive))
        descriptor = with_image(tool.name)
    bench = Bench(hibali, descriptor)
    work = bench.add_local_site("box", word)
    answers = bench.answers()
    for count in range(1 if word == "bare" else 2):
        before = bytes_transferred(bench)
        bench.run(answers, "--wait", *more, exit=0)
        assert bytes_transferred(bench) == before or count == 0
        contents = [path.read_bytes() for path in (work / "cache" / "sha256").glob("*/*") if path.is_file()]
        assert b"hello\n" in contents
        assert not any(content.startswith(b"hello\nmore") for content in contents)
    assert (bench.folder / "input.txt").read_text() == "hello\n"


@pytest.mark.heavy
def test_equal_content_of_two_files_is_cached_once(hibali: Any) -> None:
    bench = Bench(hibali)
    host = bench.folder / "far"
    (host / "deep").mkdir(parents=True)
    for name in ("a", "deep/b"):
        (host / name).write_text("hello\n")
    bench.add_site("store", f'kind = "local"\nroots = {{ data = "{host}" }}\ndefault_root = "data"')
    work = bench.add_local_site()
    bench.run(bench.answers(more=["store:a", "store:deep/b"]), "--wait", exit=0)
    assert cached(work).read_text() == "hello\n"
    before = bytes_transferred(bench)
    bench.run(bench.answers(more=["store:a", "store:deep/b"]), "--wait", exit=0)
    hibali.env["HIBALI_STATE"] = str(bench.folder / "another")  # another machine, without any records
    hibali("pipelines", "add", "tool.json", exit=0)
    hibali("pipelines", "trust", bench.reference, exit=0)
    bench.run(bench.answers(more=["store:a"]), "--wait", exit=0)
    assert bytes_transferred(bench) == before
    assert not list((bench.folder / "another" / "operations").glob("*.jsonl"))


def with_two_sites(bench: Bench) -> Bench:
    """Add the sites `alpha` and `beta`, which can run the pipeline."""
    for name in ("alpha", "beta"):
        bench.add_site(
            name,
            f'kind = "local"\nwork = "{bench.folder}/work-{name}"\nroots = {{ data = "{bench.folder}/{name}" }}\n'
            f'[sites.{name}.scheduler]\nname = "direct"\n[sites.{name}.limits]\npoll = "1s"',
        )
        (bench.folder / name).mkdir()
    bench.site = "auto"
    return bench


@pytest.fixture
def two_sites(hibali: Any) -> Bench:
    return with_two_sites(Bench(hibali))


@pytest.mark.heavy
def test_auto_considers_a_site_without_containers_only_after_the_pipeline_ran_there(hibali: Any) -> None:
    bench = Bench(hibali)
    bench.add_site("plain", f'kind = "local"\nwork = "{bench.folder}/work-plain"')
    bench.add_site("store", 'kind = "s3"\ns3.endpoint = "aws"')
    line = ("run", bench.reference, bench.answers())
    for more in ((), ("--param", "say=a,b")):
        refused = hibali(*line, "--site", "auto", *more, "--json", exit=2).last
        assert refused["code"] == "no-site"
        assert "plain: it has no [scheduler]" in refused["message"]
        assert "store: a site of kind s3" in refused["message"]
    hibali(*line, "--site", "plain", "--wait", exit=0)
    assert hibali(*line, "--site", "auto", "--wait", "--json", exit=0).last["site"] == "plain"
    swept = hibali(*line, "--site", "auto", "--param", "say=a,b", "--wait", "--json", exit=0)
    assert swept.last["site"] == "plain"


def test_auto_selects_the_site_that_has_the_data(two_sites: Bench) -> None:
    bench = two_sites
    fill(bench.folder / "beta" / "large", 3 << 20)
    answers = bench.answers(more=["beta:@data/large"])
    started = bench.run(answers, "--wait", "--explain", exit=0)
    choice = started.lines[0]
    assert (choice["kind"], choice["site"]) == ("choice", "beta")
    assert {each["site"]: each["bytes_to_move"] for each in choice["candidates"]} == {
        "alpha": (3 << 20) + 6,
        "beta": 6,
    }
    assert started.last["site"] == "beta"
    assert not (bench.folder / "work-alpha").exists()


def test_the_choice_of_one_named_site_is_explained_while_its_run_is_unfinished(two_sites: Bench) -> None:
    bench = two_sites
    answers = bench.answers(sleep=3)
    bench.site = "alpha"
    first = bench.run(answers, exit=0).last
    again = bench.run(answers, "--explain", "--wait", exit=0)
    assert (again.lines[0]["site"], again.last["id"]) == ("alpha", first["id"])


@pytest.mark.heavy
def test_auto_selects_the_site_that_cached_the_data(two_sites: Bench) -> None:
    bench = two_sites
    fill(bench.folder / "large", 3 << 20)
    answers = bench.answers(more=["large"])
    assert bench.run(answers, "--wait", exit=0).last["site"] == "alpha"  # they differ only in their names
    shutil.rmtree(bench.folder / "work-alpha" / "cache" / "sha256")
    bench.site = "beta"
    bench.run(answers, "--wait", exit=0)
    bench.site = "auto"
    before = bytes_transferred(bench)
    answer = bench.hibali(*bench.line(answers, "--wait", "--explain"), exit=0)
    assert b"TO MOVE" in answer.err
    assert b"beta: the fewest bytes must be transferred there" in answer.err
    assert bytes_transferred(bench) == before


@pytest.mark.heavy
def test_the_same_command_continues_at_the_site_of_its_active_run(hibali: Any) -> None:
    go = hibali.home.folder / "go"
    bench = with_two_sites(Bench(hibali, doing(f"until [ -e {go} ]; do sleep 0.1; done; cp [IN] [OUT]")))
    large = fill(bench.folder / "large", 3 << 20)
    (bench.folder / "answers.json").write_text(json.dumps({"in": "large"}))
    first = bench.run("answers.json", exit=0).last
    assert first["site"] == "alpha"
    # now the other site would be the better choice
    target = bench.folder / "work-beta" / "cache" / "sha256" / cached(bench.folder / "work-alpha").name[:2]
    target.mkdir(parents=True)
    (target / cached(bench.folder / "work-alpha").name).write_bytes(large.read_bytes())
    cached(bench.folder / "work-alpha").unlink()
    again = bench.run("answers.json", "--explain", exit=0)
    assert again.lines[0]["candidates"] == []
    assert again.last["id"] == first["id"]
    named = ("--site", "beta", "--site", "alpha")
    other = bench.hibali("run", bench.reference, "answers.json", *named, "--json", exit=0).last
    assert other["id"] == first["id"]
    fresh = bench.run("answers.json", "--new", exit=0).last
    assert (fresh["site"], fresh["id"] != first["id"]) == ("beta", True)
    go.touch()
    bench.hibali("runs", "wait", first["id"], fresh["id"], exit=0)


@pytest.mark.heavy
def test_sites_that_cannot_run_the_pipeline_are_named_and_skipped(two_sites: Bench) -> None:
    bench = two_sites
    bench.add_site(
        "box", f'kind = "local"\nwork = "{bench.folder}/x"\n[sites.box.container]\nname = "podman"'
    )
    bench.add_site("plain", 'kind = "local"')
    bench.site = "auto"
    choice = bench.run(bench.answers(), "--explain", "--dry-run", exit=0).last
    assert bench.run_ids() == []
    found = {each["site"]: bool(each["why_not"]) for each in choice["candidates"]}
    assert found == {"alpha": False, "beta": False, "box": True, "plain": True}
    (bench.hibali.home.state / "trust.jsonl").unlink()
    refused = bench.run(bench.answers(), exit=2).last
    assert refused["code"] == "no-site"
    assert all(name in refused["message"] for name in ("alpha", "beta", "box"))
    bench.hibali(*bench.line(bench.answers()), "--site", "nowhere", exit=2)


@pytest.mark.heavy  # a rejected login is tried again
def test_a_site_that_does_not_answer_is_named_and_skipped(two_sites: Bench) -> None:
    bench = two_sites
    bench.add_site(
        "aaa",
        'kind = "ssh"\n[sites.aaa.ssh]\nhost = "127.0.0.1"\ncommand = ["ssh", "-p", "1"]\n'
        '[sites.aaa.scheduler]\nname = "slurm"',
    )
    bench.site = "auto"
    answer = bench.hibali(*bench.line(bench.answers(), "--wait"), exit=0)
    assert b"aaa was not considered" in answer.err


@pytest.mark.heavy
def test_slurm_is_queried_once_for_the_start_time_of_a_job(hibali: Any, slurm: Any) -> None:
    bench = Bench(hibali)
    bench.add_slurm_site(slurm)
    fill(bench.folder / "large", 2 << 20)
    bench.site = "auto"
    answers = bench.answers(more=["large"])
    [candidate] = bench.run(answers, "--explain", "--dry-run", exit=0).last["candidates"]
    assert candidate["why_not"] == ""
    assert candidate["waiting_seconds"] is not None
    assert candidate["bytes_to_move"] == (2 << 20) + 6
    config = bench.hibali.home.config
    right = config.read_text()
    config.write_text(right.replace('name = "slurm"', 'name = "slurm"\npartition = "nowhere"'))
    refused = bench.run(answers, exit=2).last
    assert "Slurm rejected the job" in refused["message"]
    config.write_text(right)
    assert bench.run(answers, "--wait", exit=0).last["site"] == "cluster"
