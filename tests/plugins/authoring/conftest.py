"""Give these tests a fixture of the core's dry runs."""

from tests.contracts.test_dry_runs import settings

__all__ = ["settings"]
