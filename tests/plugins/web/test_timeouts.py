"""Test a web server that accepts a request but sends nothing, endless pages, and a self-signed certificate."""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509 import CertificateBuilder, Name, NameAttribute
from cryptography.x509.oid import NameOID

from hibali.errors import AccessError, TryLaterError
from tests.services.serving import serve_in_thread
from transfers.stores.server.web import Web


def test_a_silent_server_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hibali.http.client.SILENCE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        web = Web(f"http://127.0.0.1:{silent.getsockname()[1]}/", "quiet")
        with pytest.raises(TryLaterError) as refused:
            web.get(b"large", length=1)
        web.close()
    assert (refused.value.code, refused.value.exit) == ("unreachable", 5)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("part", [b" ", b" <a", b"<a href=", b'<a\t" href'])
def test_a_page_cannot_keep_the_search_for_links_busy(part: bytes, tmp_path: Path) -> None:
    page = b"<a" + part * 300_000 + b'<a class="x" href="file">file</a>'
    (tmp_path / "index.html").write_bytes(page)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with QuietServer(("127.0.0.1", 0), handler) as server:
        serve_in_thread(server)
        web = Web(f"http://127.0.0.1:{server.server_port}/", "lab")
        links = web.links(b"")
        web.close()
        server.shutdown()
    assert links in ({b"file": False}, {})


class QuietServer(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: the test expects the client to abort the handshake."""


def test_a_self_signed_certificate_is_refused(tmp_path: Path) -> None:
    key, name = (
        ec.generate_private_key(ec.SECP256R1()),
        Name([NameAttribute(NameOID.COMMON_NAME, "localhost")]),
    )
    today = datetime.now(UTC)
    span = today - timedelta(days=1), today + timedelta(days=1)
    made = CertificateBuilder(name, name, key.public_key(), 1, *span).sign(key, SHA256())
    pem = tmp_path / "server.pem"
    pem.write_bytes(
        made.public_bytes(Encoding.PEM) + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with QuietServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        serve_in_thread(server)
        web = Web(f"https://127.0.0.1:{server.server_port}/", "lab")
        with pytest.raises(AccessError) as refused:
            web.stat(b"file")
        web.close()
        server.shutdown()
    assert (refused.value.code, refused.value.exit) == ("bad-certificate", 4)
