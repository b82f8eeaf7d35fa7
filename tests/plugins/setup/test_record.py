"""Test that `hibali doctor` records the outcome, as `sites check` does."""

from __future__ import annotations

from pathlib import Path

import pytest

from hibali.config.model import Site
from hibali_plugins.setup.site import diagnose_site
from runs.doctor_steps import StepList
from runs.site_health import check_and_record, last_check

pytestmark = pytest.mark.usefixtures("hibali_home")


def test_doctor_and_sites_check_replace_the_record(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    site = Site("here", "local", default_root="data", roots={"data": str(folder)}, work=str(folder / "work"))
    assert last_check(site) is None
    diagnose_site(StepList(lambda _: None), site, lambda _: None, job=False)
    failed = last_check(site)
    assert failed is not None
    assert (failed.by, failed.problems > 0) == ("doctor", True)
    folder.mkdir()
    assert check_and_record(site).problems == []
    works = last_check(site)
    assert works is not None
    assert (works.by, works.problems) == ("sites check", 0)
