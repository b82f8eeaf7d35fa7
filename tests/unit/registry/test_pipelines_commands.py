"""`hibali pipelines ...` as a user types it: exit codes, results on stdout, JSON held to its schemas."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.properties.descriptors import make_document, question

ROOT = Path(__file__).parents[3]
SCHEMAS = ROOT / "docs" / "schemas"
Hibali = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def hibali(tmp_path: Path) -> Hibali:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                sys.executable,
                "-P",
                "-c",
                "import sys; from hibali_cli.main import main; sys.exit(main())",
                *words,
            ],
            check=False,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={
                "HIBALI_STATE": str(tmp_path / "state"),
                "HOME": str(tmp_path),
                "PATH": "/usr/bin:/bin",
                "PYTHONPATH": str(ROOT),
            },
        )

    return run


def write(path: Path, content: Any) -> str:
    path.write_text(json.dumps(content))
    return path.name


def records(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for record in found:
        jsonschema.Draft202012Validator(
            json.loads((SCHEMAS / f"{record['kind']}.json").read_text())
        ).validate(record)
    return found


def test_a_day_with_the_catalogue(hibali: Hibali, tmp_path: Path) -> None:
    tool = make_document("tool [A] [F]", question("a"), question("f", "File", optional=True), name="My Tool")
    file = write(tmp_path / "tool.json", tool)
    added = hibali("pipelines", "add", file)
    assert (added.returncode, added.stdout) == (0, "my-tool@1.0\n")
    assert hibali("pipelines", "add", file).returncode == 0
    listed = hibali("pipelines", "list", "--json")
    assert [each["kind"] for each in records(listed)] == ["pipeline", "end"]
    assert "my-tool" in hibali("pipelines", "search", "tool").stdout
    [shown] = records(hibali("pipelines", "show", "my-tool", "--json"))
    assert shown["descriptor"] == tool
    assert (shown["trusted"], shown["runnable"]) == (False, True)
    assert "NEEDED" in hibali("pipelines", "show", "my-tool").stdout
    assert records(hibali("pipelines", "trust", "my-tool@1.0", "--json"))[0]["trusted"]
    example = hibali("pipelines", "example", "my-tool", "--complete")
    assert json.loads(example.stdout) == {"a": "a", "f": "path/to/f"}
    (tmp_path / "invocation.json").write_text(example.stdout)
    [checked] = records(hibali("pipelines", "validate", file, "invocation.json", "--json"))
    assert checked["valid"]
    assert hibali("pipelines", "remove", "my-tool@1.0").returncode == 0
    gone = hibali("pipelines", "show", "my-tool", "--json")
    assert (gone.returncode, records(gone)[-1]["code"]) == (3, "no-such-pipeline")


def test_other_content_under_a_version_is_8(hibali: Hibali, tmp_path: Path) -> None:
    hibali("pipelines", "add", write(tmp_path / "one.json", make_document("tool [A]", question("a"))))
    other = make_document("other [A]", question("a"))
    refused = hibali("pipelines", "add", write(tmp_path / "two.json", other), "--json")
    assert (refused.returncode, records(refused)[-1]["code"]) == (8, "immutable-version")


def test_all_problems_at_once(hibali: Hibali, tmp_path: Path) -> None:
    file = write(tmp_path / "tool.json", make_document("tool [A] [B]", question("a"), question("b")))
    answers = write(tmp_path / "answers.json", {"b": 1, "c\u001b[31m": 2})
    refused = hibali("pipelines", "validate", file, answers, "--json")
    assert refused.returncode == 2
    [error] = records(refused)
    assert {each["path"] for each in error["problems"]} == {"a", "b", "c\u001b[31m"}
    assert "\u001b" not in refused.stderr
    broken = write(tmp_path / "broken.json", {"name": "x"})
    assert hibali("pipelines", "add", broken).returncode == 2
    assert hibali("pipelines", "validate", "absent.json").returncode == 3


def test_a_damaged_entry_is_named_and_the_list_is_incomplete(hibali: Hibali, tmp_path: Path) -> None:
    hibali("pipelines", "add", write(tmp_path / "one.json", make_document("tool [A]", question("a"))))
    (tmp_path / "state" / "catalogue" / "tool" / "1.0" / "descriptor.json").write_text("{}")
    listed = hibali("pipelines", "list", "--json")
    assert (listed.returncode, records(listed)[-1]["exit"]) == (6, 6)
    assert "tool@1.0" in listed.stderr


def test_two_versions_are_compared(hibali: Hibali, tmp_path: Path) -> None:
    hibali("pipelines", "add", write(tmp_path / "one.json", make_document("tool [A]", question("a"))))
    second = make_document("tool [A] [B]", question("a"), question("b"), **{"tool-version": "2.0"})
    hibali("pipelines", "add", write(tmp_path / "two.json", second))
    shown = hibali("pipelines", "diff", "tool@1.0", "tool@2.0")
    assert "! + input b: b\n" in shown.stdout
    told = records(hibali("pipelines", "diff", "tool@1.0", "tool@2.0", "--json"))
    assert [(each["kind"], each.get("path")) for each in told] == [
        ("difference", "command-line"),
        ("difference", "input b"),
        ("end", None),
    ]
    assert hibali("pipelines", "diff", "tool@1.0", "tool@2.0", "--detailed-exit-code").returncode == 10
    same = hibali("pipelines", "diff", "tool@1.0", "tool@1.0", "--detailed-exit-code")
    assert (same.returncode, same.stdout) == (0, "")


def test_an_old_descriptor_is_upgraded_and_stays_as_it_is(hibali: Hibali, tmp_path: Path) -> None:
    old = make_document("tool [A]", question("a"), **{"schema-version": "0.4", "walltime-estimate": 60})
    file = write(tmp_path / "old.json", old)
    refused = hibali("pipelines", "validate", file)
    assert (refused.returncode, "pipelines upgrade" in refused.stderr) == (2, True)
    (tmp_path / "new.json").write_text(hibali("pipelines", "upgrade", file).stdout)
    assert hibali("pipelines", "validate", "new.json").returncode == 0
    [told] = records(hibali("pipelines", "upgrade", file, "--json"))
    assert told["descriptor"]["suggested-resources"] == {"walltime-estimate": 60}
    assert json.loads((tmp_path / "old.json").read_text()) == old


def test_advice_is_given_and_can_be_taken_for_an_order(hibali: Hibali, tmp_path: Path) -> None:
    image = {"type": "docker", "image": "lab/tool:1"}
    file = write(tmp_path / "tool.json", make_document("tool [A]", question("a"), container_image=image))
    advised = hibali("pipelines", "validate", file)
    assert (advised.returncode, "not pinned" in advised.stderr) == (0, True)
    [told] = records(hibali("pipelines", "validate", file, "--json"))
    assert [each["path"] for each in told["advice"]] == ["container-image.image"]
    strict = hibali("pipelines", "validate", "--strict", file, "--json")
    assert (strict.returncode, records(strict)[-1]["problems"]) == (2, told["advice"])
