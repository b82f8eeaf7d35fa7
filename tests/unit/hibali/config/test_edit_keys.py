"""Test that single settings change only what was named, keep comments, and are checked before they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from hibali.config.edit_keys import get_value, read_edited, set_value, unset_value
from hibali.config.settings import SettingsError, default_of, keys_in_file, parse_settings
from hibali.errors import NotFoundError, UsageError

TEXT = """\
version = 1  # of the format

[sites.here]  # this machine
kind = "local"
roots = { data = "/data", old = "/old" }  # both
default_root = "data"

[sites.here.limits]
login_interval = "2s"  # the site asks for it
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(TEXT)
    path.chmod(0o600)
    return path


def test_a_setting_is_changed_in_its_place(file: Path) -> None:
    assert set_value(str(file), "sites.here.limits.login_interval", "4s") == (file, True)
    assert file.read_text() == TEXT.replace("2s", "4s")
    assert set_value(str(file), "sites.here.limits.login_interval", "4s") == (file, False)
    assert get_value(str(file), "sites.here.limits.login_interval") == "4s"
    set_value(str(file), "sites.here.roots.new", "/new")
    set_value(str(file), "sites.here.read_only", '["old"]')
    site = parse_settings(file.read_text(), file).sites["here"]
    assert (site.roots["new"], site.read_only) == ("/new", ("old",))
    assert "# both" in file.read_text()


def test_text_that_looks_like_a_number_is_text_where_the_schema_wants_it(file: Path) -> None:
    set_value(str(file), "sites.here.scheduler.name", "slurm")
    set_value(str(file), "sites.here.scheduler.account", "1234")
    assert get_value(str(file), "sites.here.scheduler.account") == "1234"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sites.here.limits.login_interval", "long"),
        ("sites.here.limits.login", "2s"),
        ("sites.here.password", "geheim"),
        ("sites.here.kind.x", "2"),
        ("sites.other.kind", "s3"),
        ("sites..x", "2"),
        ("sites.here.work\nx", "2"),
        ("", "2"),
    ],
)
def test_a_wrong_key_or_value_changes_nothing(file: Path, key: str, value: str) -> None:
    with pytest.raises(UsageError) as refused:
        set_value(str(file), key, value)
    assert refused.value.code in {"invalid-setting", "bad-setting-key"}
    assert "geheim" not in str(refused.value)
    assert file.read_text() == TEXT


def test_a_setting_or_a_table_is_removed(file: Path) -> None:
    unset_value(str(file), "sites.here.roots.old")
    assert get_value(str(file), "sites.here.roots") == {"data": "/data"}
    unset_value(str(file), "sites.here.limits")
    assert "limits" not in file.read_text()
    assert "# this machine" in file.read_text()
    for key in ("sites.here.limits", "sites.none.kind"):
        with pytest.raises(NotFoundError):
            unset_value(str(file), key)
    with pytest.raises(UsageError, match="default_root"):
        unset_value(str(file), "sites.here.roots")


def test_what_is_not_set_is_reported_with_its_default(file: Path) -> None:
    with pytest.raises(NotFoundError, match=f"its default is {default_of(('sites', 'x', 'work'))}"):
        get_value(str(file), "sites.here.work")
    assert default_of(("sites", "here", "work")) == "~/.hibali"
    assert ("sites", "NAME", "ssh", "logins") in dict(keys_in_file())


def test_an_edited_text_replaces_the_file_only_if_it_is_valid(file: Path) -> None:
    with pytest.raises(SettingsError):
        read_edited(str(file), TEXT + "x = 1\n")
    assert file.read_text() == TEXT
    assert read_edited(str(file), TEXT) == (file, False)
    assert read_edited(str(file), "version = 1\n") == (file, True)
    assert file.read_text() == "version = 1\n"


def test_a_missing_file_is_created_for_this_account_only(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "config.toml"
    set_value(str(path), "catalogue.keep", "folder")
    assert path.stat().st_mode & 0o777 == 0o600
    assert get_value(str(path), "version") == 1
