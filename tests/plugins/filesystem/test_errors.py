"""Test what Python programs see of errors: their text, their file, and that they reach other processes."""

from __future__ import annotations

import errno
import pickle
from pathlib import Path
from typing import Any

import pytest

import hibali
from hibali.errors import HibaliError, IncompleteError, NotFoundError, RefusedError, TryLaterError, UsageError
from hibali_plugins.filesystem.os_errors import as_os_error


def test_the_text_of_an_error_is_subject_message_and_hint() -> None:
    error = NotFoundError("vanished", "it does not exist", subject="lab:a", hint="To list it: hibali ls lab:")
    assert str(error) == "lab:a: it does not exist\nTo list it: hibali ls lab:"
    assert str(UsageError("usage", "wrong")) == "wrong"
    assert str(UsageError("usage", "wrong", subject="a\x1b[31m\n")) == "a\\x1b[31m\\n: wrong"
    assert str(as_os_error(error)) == str(error)


@pytest.mark.parametrize(
    ("kind", "code", "wanted", "number"),
    [
        (NotFoundError, "vanished", FileNotFoundError, errno.ENOENT),
        (RefusedError, "read-only-root", PermissionError, errno.EPERM),
        (UsageError, "is-a-folder", IsADirectoryError, errno.EISDIR),
        (UsageError, "exists", FileExistsError, errno.EEXIST),
        (TryLaterError, "unreachable", ConnectionError, errno.EIO),
        (IncompleteError, "differs", OSError, errno.EIO),
    ],
)
def test_an_error_of_a_file_names_the_file(
    kind: type[HibaliError], code: str, wanted: type[OSError], number: int
) -> None:
    found = as_os_error(kind(code, "why", subject="lab/a"))
    assert isinstance(found, wanted)
    assert (found.filename, found.strerror, found.errno) == ("lab/a", "why", number)
    assert "lab/a: why" in str(found)


@pytest.mark.parametrize("convert", [lambda error: error, as_os_error])
def test_an_error_reaches_other_processes(convert: Any) -> None:
    error = convert(TryLaterError("locked", "it is locked", subject="lab:a", hint="Wait.", transient=True))
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - as multiprocessing and Dask send it
    assert type(again) is type(error)
    assert (str(again), again.to_record()) == (str(error), error.to_record())


def test_a_missing_file_is_named_by_every_function(hibali_home: Any, tmp_path: Path) -> None:
    hibali_home.config.write_text(
        f'version = 1\n[sites.lab]\nkind = "local"\ndefault_root = "data"\n[sites.lab.roots]\ndata = "{tmp_path}"\n'
    )
    hibali_home.config.chmod(0o600)
    with pytest.raises(FileNotFoundError) as missing:
        hibali.open("lab:nothing")
    assert missing.value.filename == "lab/nothing"
    for act in (
        lambda: hibali.ls("lab:nothing"),
        lambda: hibali.du("lab:nothing"),
        lambda: hibali.rm("lab:nothing"),
    ):
        with pytest.raises(HibaliError) as caught:
            act()
        assert str(caught.value).startswith("lab:nothing: ")
