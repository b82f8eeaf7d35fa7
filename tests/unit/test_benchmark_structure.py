"""Test the figures of `make structure` on packages whose figures are known."""

from __future__ import annotations

from pathlib import Path

import grimp
import pytest

from benchmarks.structure import Count, count, count_floors, import_edges, mutual_imports, packages_of

EDGES = {"a": {"b", "c"}, "b": {"c"}, "c": set[str]()}


def test_floors_are_the_longest_chain_of_imports() -> None:
    assert count_floors(EDGES) == 3
    assert mutual_imports(EDGES) == []


def test_a_circle_has_no_floors_and_its_shortest_form_is_named() -> None:
    circle = {**EDGES, "c": {"a"}}
    assert count_floors(circle) is None
    assert mutual_imports(circle) == [("a", "c")]


def test_lines_are_counted_without_the_files_of_packages(tmp_path: Path) -> None:
    for name, lines in (("one/__init__.py", 1), ("one/a.py", 2), ("one/b/c.py", 4), ("one/b/d.py", 8)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n" * lines)
    assert count(tmp_path, ["one"]) == Count(14, 3)


def test_the_packages_are_those_of_the_wheel_and_imports_inside_functions_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = '[tool.hatch.build.targets.wheel]\npackages = ["counted"]\n'
    (tmp_path / "pyproject.toml").write_text(project)
    folder = tmp_path / "counted"
    (folder / "low").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "low" / "__init__.py").write_text("")
    (folder / "low" / "ground.py").write_text("def up():\n    from counted import high\n\n    return high\n")
    (folder / "high.py").write_text("from counted.low.ground import up\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert packages_of(tmp_path) == ["counted"]
    edges = import_edges(grimp.build_graph("counted", cache_dir=None), "counted")
    assert mutual_imports(edges) == [("counted.high", "counted.low")]
