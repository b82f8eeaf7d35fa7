"""Make descriptors, and change the git repository of a remote as another account."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.properties.descriptors import make_document, make_input


def raw(name: str = "tool", version: str = "1.0", **more: object) -> bytes:
    document = make_document("tool [A]", make_input("a"), name=name)
    return json.dumps({**document, "tool-version": version, **more}).encode()


def git(folder: Path, *words: str, stdin: bytes = b"") -> str:
    person = {f"GIT_{role}_{part}": "a@b" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    environment = {**os.environ, **person, "GIT_CONFIG_GLOBAL": "/dev/null"}
    done = subprocess.run(
        ["git", *words], cwd=folder, check=True, capture_output=True, env=environment, input=stdin
    )
    return done.stdout.decode()


def forge(repository: Path, files: dict[str, bytes | None], *, symlink: bool = False) -> None:
    """Commit directly to the git remote, not through an account's catalogue."""
    index = {"GIT_INDEX_FILE": str(repository / "forged")}
    os.environ.update(index)
    try:
        if git(repository, "for-each-ref"):
            git(repository, "read-tree", "main")
        for name, content in files.items():
            if content is None:
                gone = f"0 {'0' * 40}\t{name}\n".encode()
                git(repository, "update-index", "--index-info", stdin=gone)
                continue
            blob = git(repository, "hash-object", "-w", "--stdin", stdin=content).strip()
            mode = "120000" if symlink else "100644"
            git(repository, "update-index", "--add", "--cacheinfo", f"{mode},{blob},{name}")
        tree = git(repository, "write-tree").strip()
        parents = git(repository, "for-each-ref", "--format=%(objectname)").split()
        words = [word for each in parents for word in ("-p", each)]
        git(
            repository,
            "update-ref",
            "refs/heads/main",
            git(repository, "commit-tree", tree, *words, "-m", "x").strip(),
        )
    finally:
        del os.environ["GIT_INDEX_FILE"]
        (repository / "forged").unlink(missing_ok=True)
