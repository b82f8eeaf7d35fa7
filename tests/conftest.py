"""Load the plugins of all tests, and remove variables of the caller's environment that change results.

The fixtures are in tests/services/fixtures.py.
"""

import atexit
import gc
import os
import shutil
import signal
import tempfile

import pytest
from hypothesis import settings

pytest_plugins = [
    "tests.support.requirements",
    "tests.services.fixtures",
    "tests.time_budget",
    "tests.untouched_home",
]

# Variables that the caller's shell may set and that change results: a git hook sets its repository, a terminal its width.
# Proxy variables stay, because tests may install packages; the tests' servers are on loopback and need no proxy.
_LOCAL = "127.0.0.1,localhost,::1"
_REMOVED = {
    "NO_COLOR",
    "FORCE_COLOR",
    "CLICOLOR_FORCE",
    "COLUMNS",
    "LINES",
    "CDPATH",
    "TMOUT",
    "BASH_ENV",
    "ENV",
}
_REPOSITORY = {
    "DIR",
    "WORK_TREE",
    "INDEX_FILE",
    "PREFIX",
    "COMMON_DIR",
    "NAMESPACE",
    "OBJECT_DIRECTORY",
    "EDITOR",
}
for _name in list(os.environ):
    _git = _name.removeprefix("GIT_") if _name.startswith("GIT_") else ""
    if (
        _name in _REMOVED
        or _git in _REPOSITORY
        or _git.startswith(("AUTHOR_", "COMMITTER_", "TRACE", "ALTERNATE_", "QUARANTINE_"))
    ):
        del os.environ[_name]
for _name in ("no_proxy", "NO_PROXY"):
    os.environ[_name] = f"{os.environ[_name]},{_LOCAL}" if os.environ.get(_name) else _LOCAL

# Functions that are called without the fixture `hibali_home` must not write below the tester's home either.
_own = tempfile.mkdtemp(prefix="hibali-tests-")
atexit.register(shutil.rmtree, _own, ignore_errors=True)
os.environ |= {"HIBALI_STATE": f"{_own}/state", "HIBALI_CONFIG": f"{_own}/config.toml"}

# A background shell or nohup ignores these signals, and child processes inherit that; tests interrupt child processes.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The duration of an example depends mostly on the other load of the machine.
settings.register_profile("shared", deadline=None)
settings.register_profile("ordinary", deadline=None, max_examples=40)
settings.load_profile("shared")


def pytest_configure(config: pytest.Config) -> None:
    """Try fewer examples of each property where heavy tests do not run either; the modules of tests are not imported yet."""
    if config.option.markexpr == "not heavy":
        settings.load_profile("ordinary")


def pytest_collection_finish() -> None:
    """Leave the collected tests out of garbage collection, which otherwise goes through all of them again and again."""
    gc.collect()
    gc.freeze()
