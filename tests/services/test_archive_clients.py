"""List and read the doubles of archives with unmodified clients: pyDataverse, osfclient, and the one that Figshare's OpenAPI document generates.

Zenodo and DANDI have none that is light and takes another address; for these see the sources in tests/services/archives.py.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.services.archives import ARCHIVES, Archive, Published
from tests.services.session import REPOSITORY
from tests.support.requirements import require_prepared

pytestmark = pytest.mark.heavy
_PYTHON = REPOSITORY / ".cache" / "rest" / "bin" / "python"
FILES = [
    Published("README.md", b"A dataset.\n"),
    Published("sub-01/scan.nii", b"x" * 3000),
    Published("sub-01/survey.sav", b"an SPSS table"),
]
# Each prints a list of name, size and MD5, and the content of README.md.
SCRIPTS = {
    "dataverse": """
from pyDataverse.api import NativeApi, DataAccessApi
doi = "doi:10.70122/FK2/ABC"
data = NativeApi(url).get_dataset_version(doi, ":latest-published").json()["data"]
files = [each["dataFile"] for each in data["files"]]
listed = [[each.get("originalFileName", each["filename"]), each.get("originalFileSize", each["filesize"]), each["md5"]] for each in files]
content = DataAccessApi(url).get_datafile(files[0]["id"], is_pid=False).content.decode()
""",
    "osf": """
from osfclient.api import OSF
osf = OSF()
osf.session.base_url = url + "/v2/"
items = osf.session.get(url + "/v2/nodes/abcde/files/osfstorage/").json()["data"]
listed = [[each["attributes"]["materialized_path"], each["attributes"].get("size"), (each["attributes"].get("extra") or {}).get("hashes", {}).get("md5")] for each in items]
content = osf.session.get([each for each in items if each["attributes"]["name"] == "README.md"][0]["links"]["download"]).text
""",
    "figshare": """
import openapi_client, urllib.request
client = openapi_client.ApiClient(openapi_client.Configuration(host=url + "/v2"))
articles = openapi_client.ArticlesApi(client)
version = json.loads(articles.article_details_without_preload_content(11).data)["version"]
files = articles.article_version_files(11, version, page=1, page_size=100)
listed = [[each.name, each.size, each.computed_md5] for each in files]
content = urllib.request.urlopen(files[0].download_url).read().decode()
""",
}


@pytest.fixture(params=SCRIPTS)
def archive(request: pytest.FixtureRequest) -> Any:
    require_prepared(_PYTHON, "rest")
    double = ARCHIVES[request.param](list(FILES))
    double.page = 100
    yield double
    double.close()
    assert not double.refused


def test_an_unmodified_client_lists_and_reads(archive: Archive) -> None:
    [name] = [name for name in SCRIPTS if isinstance(archive, ARCHIVES[name])]
    script = f"import json, sys\nurl = sys.argv[1]\n{SCRIPTS[name]}\nprint(json.dumps([listed, content]))"
    ended = subprocess.run(
        [_PYTHON, "-c", script, archive.url], capture_output=True, timeout=180, check=False
    )
    assert ended.returncode == 0, ended.stderr.decode()
    listed, content = json.loads(ended.stdout)
    assert content == "A dataset.\n"
    assert [FILES[0].name, len(FILES[0].content), FILES[0].md5] in [
        [each[0].strip("/"), *each[1:]] for each in listed
    ]
