"""Give these tests the fixtures of the tests of images, and of commands of the catalogue."""

from tests.unit.registry.images.test_images import archive, catalogue, state, tool
from tests.unit.registry.test_pipelines_commands import hibali as catalogued

__all__ = ["archive", "catalogue", "catalogued", "state", "tool"]
