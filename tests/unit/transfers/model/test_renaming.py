"""Test how rules of --rename are read, and that no rule takes unlimited time or memory."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from hibali.errors import HibaliError, TryLaterError, UsageError
from transfers.model.renaming import Rewriting, read_renaming
from transfers.model.rewriting import MOST_BYTES


def rewrite(rules: list[str], *paths: bytes) -> list[bytes]:
    with closing(Rewriting(rules)) as rewriting:
        return rewriting.rewrite(paths)


@pytest.mark.parametrize(
    ("rule", "path", "expected"),
    [
        (r"sub-(\d+)/s\1/", b"sub-01/sub-01_T1w", b"s01/sub-01_T1w"),  # the first one, as in sed
        (r"s/sub-(\d+)/s\1/g", b"sub-01/sub-01_T1w", b"s01/s01_T1w"),
        ("s/SUB/s/gi", b"sub-01/Sub-02", b"s-01/s-02"),
        ("s|raw/|cooked/|", b"raw/a/raw/b", b"cooked/a/raw/b"),
        ("s,a/b,c/d,", b"a/b", b"c/d"),
        (r"a\/b/c\/d/", b"a/b", b"c/d"),
        (r"s|a\|b|x\|y|", b"a|b", b"x|y"),  # no alternative
        ("s/b/<&&>/", b"abc", b"a<bb>c"),
        (r"s/b/\&/", b"abc", b"a&c"),
        (r"s/(?P<year>\d{4})/y\g<year>/", b"in 2026", b"in y2026"),
        (r"s/(a)|b/[\1]/g", b"ab", b"[a][]"),
        ("s-x/y/", b"s-x", b"y"),  # no delimiter of names
        ("s/^/x_/", b"a\nb", b"x_a\nb"),
        ("s/./_/", b"\xffa", b"_a"),  # not UTF-8
        ("s/a/b/", b"\xff\xfea", b"\xff\xfeb"),
        ("s/é/e/", "é".encode(), b"e"),
        (r"s/\\/\\\\/", b"a\\b", b"a\\\\b"),
    ],
)
def test_a_rule_is_as_in_sed_with_pythons_patterns(rule: str, path: bytes, expected: bytes) -> None:
    assert rewrite([rule], path) == [expected]


def test_rules_apply_in_their_order() -> None:
    assert rewrite(["s/a/b/g", "s/b/c/"], b"ab", b"x") == [b"cb", b"x"]


@pytest.mark.parametrize(
    "rule",
    [
        *("", "x", "s", "s/a", "s/a/b", "s/a/b/c/", "s/a/b/x", "s//b/", "a/b", "/b/", "s|a|b/"),
        *("s/(/b/", r"s/a/\1/", r"s/a/\g<n>/", r"s/a/\q/", "s/a{99999999999}/b/"),
        "s/" + "(" * 9999 + ")" * 9999 + "/b/",
    ],
)
def test_what_is_no_rule_is_an_error_that_shows_one(rule: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_renaming(rule)
    assert raised.value.code == "bad-rename"
    assert rule in (raised.value.subject or "")


@pytest.mark.parametrize("rule", [3, None, b"s/a/b/", "s/a/\ud800/"])
def test_what_python_gives_and_no_path_has_is_an_error(rule: Any) -> None:
    with pytest.raises(UsageError) as raised:
        read_renaming(rule)
    assert raised.value.code == "bad-rename"
    assert str(raised.value).encode()


@pytest.mark.filterwarnings("error")
def test_no_warning_of_python_is_shown() -> None:
    assert rewrite(["s/[[a]/b/"], b"[") == [b"b"]


@pytest.mark.parametrize(
    ("rule", "path"),
    [
        ("(a+)+$/x/", b"a" * 60 + b"b"),  # 2^60 ways
        ("s/(?=(.*))/" + r"\1" * 400 + "/g", b"x" * 4000),  # 3 GB
    ],
)
def test_a_rule_that_takes_too_much_is_ended(rule: str, path: bytes) -> None:
    with closing(Rewriting([rule])) as rewriting:
        assert rewriting.rewrite([b"b"])
        with pytest.raises(HibaliError) as raised:
            rewriting.rewrite([path])
    assert (raised.value.code, raised.value.subject) == ("rename-too-slow", f"--rename {rule}")


def test_a_path_that_grows_with_every_rule_is_cut() -> None:
    (path,) = rewrite(["s/.*/&&/"] * 40, b"ab")
    assert MOST_BYTES < len(path) < 2 * MOST_BYTES


def test_a_killed_process_is_no_fault_of_the_rule() -> None:
    with closing(Rewriting(["s/a/b/"])) as rewriting:
        rewriting._process.kill()  # as the kernel does without memory
        with pytest.raises(TryLaterError):
            rewriting.rewrite([b"a"])
