"""What every test may ask for: see tests/services/fixtures.py."""

from hypothesis import settings

pytest_plugins = ["tests.services.fixtures"]

# How long an example takes says more about who else uses the machine than about us.
settings.register_profile("shared", deadline=None)
settings.load_profile("shared")
