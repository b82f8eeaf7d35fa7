"""Test the results of operations in the ledger, and finding unverified files."""

from __future__ import annotations

from pathlib import Path

import pytest

from hibali.errors import AccessError, Exit
from hibali.ledger import Journal, ledger_folder
from hibali.system_errors import exit_of
from hibali.text import path_fields
from hibali_cli.interruption import OutOfTime, Terminated
from transfers.history.index import read_operations
from transfers.history.operations import OperationRoot, find_unverified


def test_every_exit_code_has_its_result() -> None:
    causes = [None, OutOfTime(), Terminated(), KeyboardInterrupt(), AccessError("denied", "no"), OSError()]
    codes = [exit_of(cause) for cause in causes]
    assert codes == [
        Exit.DONE,
        Exit.TRY_LATER,
        Exit.TERMINATED,
        Exit.INTERRUPTED,
        Exit.ACCESS,
        Exit.BUG,
    ]


def test_roots_know_the_paths_below_them() -> None:
    root, data, file = (
        OperationRoot("s", None, b"/"),
        OperationRoot("s", None, b"/data"),
        OperationRoot("s", None, b"/data/a"),
    )
    assert [data.path_to(each) for each in (root, data, file)] == [b"", b"", b"a"]
    assert root.path_to(file) == b"data/a"
    assert data.path_to(OperationRoot("s", None, b"/database")) is None
    assert data.path_to(OperationRoot("s", "bucket", b"/data")) is None
    assert (data.holds(file), file.holds(data)) == (True, False)


def write(number: int, operation: str, proof: str | None, *records: dict[str, object]) -> None:
    name = f"2026010{number}-000000-00000000"
    with Journal(ledger_folder("operations") / f"{name}.jsonl") as journal:
        head = {"kind": "operation", "id": name, "operation": operation, "at": f"2026-01-0{number}T00:00:00Z"}
        journal.append({**head, "source": "a", "target": "there:d"})
        journal.append({"kind": "place", "site": "there", "bucket": "b", "place": "d"})
        for record in records:
            journal.append(record)
        journal.append({"kind": "receipt", "exit": 0, "proof_moved": proof, "proof_tree": "digest"})


def moved(path: bytes, proof: str) -> dict[str, object]:
    return {"kind": "moved", **path_fields(path), "entry": "file", "size": 5, "proof": proof}


def test_files_moved_again_deleted_or_verified_are_not_unverified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIBALI_STATE", str(tmp_path / "state"))
    write(1, "push", "size", *(moved(name, "size") for name in (b"a", b"b", b"c", b"\xff")))
    write(2, "push", "digest", moved(b"a", "digest"))
    write(3, "rm", None, {"kind": "deleted", "path": "b", "entry": "file"})
    [left] = find_unverified(read_operations())
    assert (left.site, left.target, left.proof, left.files, left.bytes) == ("there", "there:d", "size", 2, 10)
    write(4, "verify", None)
    assert find_unverified(read_operations()) == []
