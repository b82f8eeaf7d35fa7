"""Give these tests the fixtures of the tests of images."""

from tests.unit.registry.images.test_images import archive, catalogue, state, tool

__all__ = ["archive", "catalogue", "state", "tool"]
