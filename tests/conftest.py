"""What every test may ask for: see tests/services/fixtures.py."""

import signal

from hypothesis import settings

pytest_plugins = ["tests.services.fixtures", "tests.time_budget"]

# Whoever runs the tests in the background, or by nohup, has these ignored, and so would every child that is to be interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# How long an example takes says more about who else uses the machine than about us.
settings.register_profile("shared", deadline=None)
settings.load_profile("shared")
