"""Test the answers of HDFS data nodes: errors are raised, and redirections name the requested file."""

from __future__ import annotations

import http.server
from collections.abc import Iterator
from urllib.parse import quote

import fsspec
import pytest

from hibali_plugins.fsspec_sites.webhdfs import check_answers, with_path_of
from tests.services.serving import serve_in_thread

_DECOMPOSED, _COMPOSED = "cafe\u0301", "caf\u00e9"
_NODE = "http://node:50075/webhdfs/v1"


class _Nodes(http.server.BaseHTTPRequestHandler):
    """A name node that redirects, and its data node that fails as the file's name says."""

    def do_GET(self) -> None:
        if "namenoderpcaddress" in self.path:
            self._answer(int(self.path.partition("?")[0].rpartition("/")[2]), b'{"RemoteException":{}}')
        elif "GETFILESTATUS" in self.path:
            self._answer(200, b'{"FileStatus":{"type":"FILE","length":5,"pathSuffix":""}}')
        else:
            self.send_response(307)
            self.send_header("Location", f"{self.path}&namenoderpcaddress=here")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Nodes)
    thread = serve_in_thread(server)
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "error"), [(404, FileNotFoundError), (403, PermissionError), (500, OSError)]
)
def test_the_error_of_a_data_node_is_not_taken_for_content(
    port: int, status: int, error: type[OSError]
) -> None:
    def proxy(url: str) -> str:
        return url if url.startswith("http") else f"http://127.0.0.1:{port}{url}"

    hdfs = fsspec.filesystem(
        "webhdfs", host="127.0.0.1", port=port, data_proxy=proxy, skip_instance_cache=True
    )
    assert hdfs.cat_file(f"/{status}")[:5] == b'{"Rem', "fsspec itself does, which is why it is checked"
    check_answers(hdfs)
    with pytest.raises(error):
        hdfs.cat_file(f"/{status}")
    hdfs.session.close()


def test_a_redirection_names_the_requested_file() -> None:
    requested = f"http://name:50070/webhdfs/v1/x/{quote(_DECOMPOSED)}?op=OPEN"
    location = f"{_NODE}/x/{quote(_COMPOSED)}?op=OPEN&namenoderpcaddress=name:9000&offset=0"
    assert with_path_of(requested, location) == location.replace(quote(_COMPOSED), quote(_DECOMPOSED))


def test_a_redirection_to_another_path_is_left_as_it_is() -> None:
    for location in (f"{_NODE}/y/a?op=OPEN", "https://gateway/cluster/v1/data/v1/x/a?_=token", "/login"):
        assert with_path_of("http://name:50070/webhdfs/v1/x/a?op=OPEN", location) == location
