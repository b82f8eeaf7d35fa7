"""Test the wheel and the source archive, built without a network and used without the clone."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.requirements import require_prepared

CLONE = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.heavy


def run(*words: str | Path, cwd: Path = CLONE, **env: str) -> str:
    """Return the output of a program, which has to succeed."""
    environment = {"PATH": "/usr/bin:/bin", "PYTHONNOUSERSITE": "1", **env}
    done = subprocess.run(
        words, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(folder: Path, clone: Path = CLONE) -> tuple[Path, Path]:
    """Build the wheel and the source archive of a clone."""
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=clone)
    [wheel], [archive] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, archive


def install(wheel: Path, folder: Path) -> Path:
    """Install the wheel in an environment that otherwise has the packages of this one without hibali."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin/python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", "-q", wheel)
    packages = folder / "packages"
    packages.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if path.suffix != ".pth" and "hibali" not in path.name:
            (packages / path.name).symlink_to(path)
    [site] = folder.glob("lib/python*/site-packages")
    (site / "packages.pth").write_text(f"{packages}\n")
    return folder / "bin/hibali"


def test_the_wheel_contains_all_that_hibali_needs(tmp_path: Path) -> None:
    wheel, archive = build(tmp_path / "dist")
    folder = tmp_path / "venv"
    hibali = install(wheel, folder)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    env = {"HOME": str(home), "XDG_RUNTIME_DIR": str(home), "HIBALI_STATE": str(home / "state")}
    where = run(folder / "bin/python", "-c", "import hibali; print(hibali.__file__)", cwd=home, **env)
    assert where.startswith(str(folder))
    assert run(hibali, "--version", cwd=home, **env).startswith("hibali ")
    assert run(hibali, "init", "--yes", "--json", cwd=home, **env).count('"proof_moved":"digest"') == 1
    assert "this-machine" in run(hibali, "sites", "list", cwd=home, **env)
    assert "hello.txt" in run(hibali, "ls", "this-machine:hibali-first", cwd=home, **env)
    assert "sftp-server" in run(hibali, "sites", "gate", cwd=home, **env)  # a data file
    [packages] = folder.glob("lib/python*/site-packages")
    for profile in CLONE.glob("hibali_plugins/*/profiles/*.toml"):
        assert (packages / profile.relative_to(CLONE)).read_bytes() == profile.read_bytes()
    share = folder / "share"
    for page in CLONE.glob("man/*"):
        assert (share / "man/man1" / page.name).read_bytes() == page.read_bytes()
    for name, place in (
        ("hibali.bash", "bash-completion/completions/hibali"),
        ("_hibali", "zsh/site-functions/_hibali"),
        ("hibali.fish", "fish/vendor_completions.d/hibali.fish"),
    ):
        assert (share / place).read_bytes() == (CLONE / "completions" / name).read_bytes()
    words = {"COMP_LINE": "hibali doctor ", "_HIBALI_COMPLETE": "bash_complete"}
    assert run(hibali, cwd=home, **env, **words) == "plain,this-machine\n"
    # a build from the source archive is identical
    with tarfile.open(archive) as stream:
        stream.extractall(tmp_path / "source", filter="data")
    [source] = (tmp_path / "source").iterdir()
    again, _ = build(tmp_path / "again", source)
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert {each.filename: each.CRC for each in first.infolist()} == {
            each.filename: each.CRC for each in second.infolist()
        }
        assert not any("test" in each.split("/")[0] for each in first.namelist())


@pytest.mark.parametrize("words", [("pipx", "install", "--quiet"), ("uv", "tool", "install", "--quiet")])
def test_the_wheel_can_be_installed_with_pipx_or_uv(tmp_path: Path, words: tuple[str, ...]) -> None:
    program = CLONE / ".cache/delivery/bin" / words[0]
    require_prepared(program, "delivery")
    wheel, _ = build(tmp_path / "dist")
    places = ("PIPX_HOME", "PIPX_BIN_DIR", "PIPX_MAN_DIR", "UV_TOOL_DIR", "UV_TOOL_BIN_DIR")
    env = {**os.environ, **{name: str(tmp_path / name) for name in places}, "HOME": str(tmp_path)}
    run(program, *words[1:], wheel, **env)
    hibali = tmp_path / ("PIPX_BIN_DIR" if words[0] == "pipx" else "UV_TOOL_BIN_DIR") / "hibali"
    assert run(hibali, "--version", **env).startswith("hibali ")
    assert run(hibali, "init", "--yes", "--json", **env).count('"proof_moved":"digest"') == 1
