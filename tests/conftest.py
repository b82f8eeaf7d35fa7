"""What every test may ask for: see tests/services/fixtures.py."""

import os
import signal

from hypothesis import settings

pytest_plugins = ["tests.services.fixtures", "tests.time_budget"]

# What the shell of whoever runs the tests may have, and no test means: a git hook names its repository, a shell behind a
# proxy names that, and a terminal says how wide it is. Proxies stay for what is installed; the servers here are on loopback.
_LOCAL = "127.0.0.1,localhost,::1"
_NOT_MEANT = {
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
        _name in _NOT_MEANT
        or _git in _REPOSITORY
        or _git.startswith(("AUTHOR_", "COMMITTER_", "TRACE", "ALTERNATE_", "QUARANTINE_"))
    ):
        del os.environ[_name]
for _name in ("no_proxy", "NO_PROXY"):
    os.environ[_name] = f"{os.environ[_name]},{_LOCAL}" if os.environ.get(_name) else _LOCAL

# Whoever runs the tests in the background, or by nohup, has these ignored, and so would every child that is to be interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# How long an example takes says more about who else uses the machine than about us.
settings.register_profile("shared", deadline=None)
settings.load_profile("shared")
