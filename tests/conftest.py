"""What every test may ask for: see tests/services/fixtures.py."""

pytest_plugins = ["tests.services.fixtures"]
