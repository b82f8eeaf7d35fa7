"""Test Snakemake's storage plugin with the real Snakemake: files at a site as inputs and outputs of rules, with one login."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.processes import free_port
from tests.support.snakemakes import ENVIRONMENT, CountedSite, Snakemake, counted_site, snakemake_in

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]  # Snakemake alone needs seconds for each call

FILES = 20
_SNAKEFILE = """
names = glob_wildcards(storage("hibali://there/scans/{name}.txt")).name

rule all:
    input:
        storage("hibali://there/summary.txt"),

rule count:
    input:
        storage("hibali://there/scans/{name}.txt"),
    output:
        storage("hibali://there/counts/{name}/size.txt"),
    shell:
        "wc -c <{input} >{output}"

rule summary:
    input:
        counts=storage(expand("hibali://there/counts/{name}/size.txt", name=names)),
        notes=storage("hibali://there/notes"),
    output:
        storage("hibali://there/summary.txt"),
    shell:
        "cat {input.counts} {input.notes}/* >{output}"
"""


@pytest.fixture
def there(hibali: Any) -> Iterator[CountedSite]:
    """Return an ssh site with 20 scans, whose logins are counted."""
    with counted_site(hibali.home.folder) as site:
        hibali.home.config.write_text(f"version = 1\n[sites.there]\n{site.table()}")
        hibali.home.config.chmod(0o600)
        for folder in ("scans", "notes"):
            (site.root / folder).mkdir()
        (site.root / "notes" / "a note").write_text("end\n")
        for number in range(1, FILES + 1):
            (site.root / "scans" / f"s{number}.txt").write_text("x" * number)
        yield site


@pytest.fixture
def snakemake(hibali: Any) -> Snakemake:
    return snakemake_in(hibali, _SNAKEFILE)


def sizes(path: Path) -> list[int]:
    return sorted(int(line) for line in path.read_text().splitlines() if line.strip().isdigit())


def test_files_at_a_site_are_inputs_and_outputs_with_one_login(
    there: CountedSite, snakemake: Snakemake
) -> None:
    snakemake.run("--cores", "2")
    assert sizes(there.root / "summary.txt") == list(range(1, FILES + 1))
    assert (there.root / "summary.txt").read_text().endswith("end\n")
    assert len(list((there.root / "counts").glob("*/size.txt"))) == FILES
    assert there.logins == 1
    assert "Nothing to be done" in snakemake.run("--cores", "2")

    (there.root / "scans" / "s3.txt").write_text("x" * 300)
    printed = snakemake.run("--cores", "2")
    assert printed.count("rule count:") == 1
    assert sizes(there.root / "summary.txt") == sorted([300, *range(1, 3), *range(4, FILES + 1)])
    assert there.logins == 1


_SUITE = """
import asyncio, logging, pathlib, sys
from snakemake.io import IOCache
from snakemake_interface_storage_plugins.tests import TestStorageBase
from snakemake_storage_plugin_hibali import StorageProvider, StorageProviderSettings

class Suite(TestStorageBase):
    files_only = False
    def get_storage_provider_cls(self): return StorageProvider
    def get_storage_provider_settings(self): return StorageProviderSettings()
    def get_query(self, tmp_path): return "hibali://there/suite/a [1] é.txt"
    def get_query_not_existing(self, tmp_path): return "hibali://there/suite/missing/b.txt"

folder = pathlib.Path(sys.argv[1])
for name in dir(Suite):
    if name.startswith("test_"):
        getattr(Suite(), name)(folder / name)

provider, requests = Suite()._get_provider(folder), []
read = provider._read
provider._read = lambda *words, **options: requests.append(words) or read(*words, **options)
cache = IOCache(max_wait_time=20)
objects = [provider.object(f"hibali://there/many/{n}/{name}") for n in range(100) for name in ("a", "b", "missing")]
for each in objects:
    asyncio.run(each.inventory(cache))
found = [cache.exists_in_storage[each.cache_key()] for each in objects]
assert found == [True, True, False] * 100, found
key = objects[0].cache_key()
assert (cache.size[key], cache.mtime[key].storage()) == (1, objects[0].mtime())
print(len(requests))
"""


def test_the_suite_of_storage_plugins_passes_and_many_files_need_few_listings(
    there: CountedSite, snakemake: Snakemake
) -> None:
    for number in range(100):
        (there.root / "many" / str(number)).mkdir(parents=True)
        for name in ("a", "b"):
            (there.root / "many" / str(number) / name).write_text("x")
    python = ENVIRONMENT / "bin" / "python"
    done = subprocess.run(
        [python, "-c", _SUITE, snakemake.folder],
        env=snakemake.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "9\n"), done.stderr
    assert not list((there.root / "suite").iterdir())
    assert there.logins == 1


@pytest.mark.parametrize(
    ("site", "reason"),
    [("thera", "thera: no site with this name is configured"), ("gone", "Connection refused")],
)
def test_a_site_that_is_unknown_or_unreachable_is_an_error_and_no_missing_file(
    hibali: Any, site: str, reason: str
) -> None:
    hibali.home.config.write_text(
        f'version = 1\n[sites.gone]\nkind = "ssh"\n[sites.gone.ssh]\nhost = "127.0.0.1"\ncommand = ["ssh", "-p", "{free_port()}"]\n'
    )
    hibali.home.config.chmod(0o600)
    snakemake = snakemake_in(
        hibali, _SNAKEFILE.partition("rule count")[0].replace("there/sum", f"{site}/sum")
    )
    snakefile = snakemake.folder / "Snakefile"
    snakefile.write_text(snakefile.read_text().partition("\n\n")[2])  # without the glob
    printed = snakemake.run("--cores", "1", exit=1)
    assert reason in printed
    assert "MissingInputException" not in printed
    assert "Traceback" not in printed
