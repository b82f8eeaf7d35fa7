"""Run fsspec's own tests of a filesystem on `hibali://` over several stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.tests import abstract

from hibali_plugins.filesystem.filesystem import HibaliFileSystem
from tests.services.fixtures import HibaliHome
from tests.support.backends import add_site, make_backend


class Fixtures(abstract.AbstractFixtures):
    word = ""

    @pytest.fixture
    def fs(
        self,
        tmp_path: Path,
        hibali_home: HibaliHome,
        request: pytest.FixtureRequest,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Iterator[HibaliFileSystem]:
        backend = make_backend(self.word, tmp_path / "backend", request.getfixturevalue)
        add_site(hibali_home.config, "there", backend)
        for name, value in backend.env.items():
            monkeypatch.setenv(name, value)
        filesystem = HibaliFileSystem(str(hibali_home.config), skip_instance_cache=True)
        yield filesystem
        filesystem.close()

    @pytest.fixture
    def fs_path(self) -> str:
        return "there/tests"

    @pytest.fixture
    def fs_join(self) -> Any:
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return self.word != "s3"


class Suites(
    abstract.AbstractCopyTests,
    abstract.AbstractGetTests,
    abstract.AbstractPutTests,
    abstract.AbstractOpenTests,
    abstract.AbstractPipeTests,
    Fixtures,
):
    """All suites of fsspec."""


@pytest.mark.heavy
class TestLocal(Suites):
    word = "local"


@pytest.mark.heavy
class TestSsh(Suites):
    word = "ssh"


@pytest.mark.heavy
class TestS3(Suites):
    word = "s3"

    @pytest.fixture(autouse=True)
    def known_fault(self, request: pytest.FixtureRequest) -> None:
        """SeaweedFS lists the prefix of objects that were deleted as a folder, also to other clients."""
        name = request.node.name
        if name.startswith(("test_copy", "test_put")) and name.endswith(
            ("directory_to_existing_directory", "glob_to_existing_directory")
        ):
            request.applymarker(pytest.mark.xfail(strict=True))


class TestSftp(abstract.AbstractOpenTests, abstract.AbstractPipeTests, Fixtures):
    word = "sftp"


class TestWebdav(abstract.AbstractOpenTests, abstract.AbstractPipeTests, Fixtures):
    word = "webdav"
