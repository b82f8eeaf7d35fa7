"""Drive an unmodified FirecREST v2 over the tests' sshd, Slurm with accounting and object store, with a small issuer of tokens.

FirecREST is not in a package index. These tests run where HIBALI_FIRECREST names a folder with its source (github.com/eth-cscs/firecrest-v2)
and a virtual environment `.venv` with its requirements.txt; otherwise they are skipped.
"""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench
from tests.services.fixtures import Buckets
from tests.services.processes import answers, end_all, free_port, start, wait_until
from tests.services.slurm import Slurm
from tests.support.rest_sites import NAME

_SOURCE = os.environ.get("HIBALI_FIRECREST", "")
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(not _SOURCE, reason="HIBALI_FIRECREST names no source of FirecREST v2"),
]
_SERVE = """
import http.server, json, sys, threading, time
import jwt, uvicorn
from cryptography.hazmat.primitives.asymmetric import rsa
port, issuer, user, keys = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
private = rsa.generate_private_key(65537, 2048)
public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(private.public_key()))
with open(keys, "w") as file:
    json.dump({"keys": [{**public, "kid": "1", "alg": "RS256", "use": "sig"}]}, file)

class Issuer(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        claims = {"preferred_username": user, "exp": time.time() + 3600}
        token = jwt.encode(claims, private, "RS256", headers={"kid": "1"})
        body = json.dumps({"access_token": token, "token_type": "Bearer", "expires_in": 3600}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

server = http.server.ThreadingHTTPServer(("127.0.0.1", issuer), Issuer)
threading.Thread(target=server.serve_forever, daemon=True).start()
uvicorn.run("firecrest.main:app", host="127.0.0.1", port=port)
"""


@dataclass(frozen=True)
class RealFirecrest:
    """The server: its API, the URL of its tokens, and the home folder of its account."""

    url: str
    token_url: str
    home: Path
    log: Path

    def table(self) -> str:
        return (
            f'kind = "firecrest"\n[sites.{NAME}.firecrest]\nurl = "{self.url}"\nsystem = "daint"\nstreamer = true\nclient_id = "me"\n'
            f'client_secret_command = ["echo", "planted-secret"]\ntoken_url = "{self.token_url}"\n'
            f'[sites.{NAME}.limits]\nrequests = 2000\npoll = "1s"\nsettling = "3s"\n'
        )


def _configuration(slurm: Slurm, store: Any, folder: Path, issuer: int, method: str) -> dict[str, Any]:
    seconds = {"connection": 20, "login": 20, "command_execution": 20, "idle_timeout": 60, "keep_alive": 5}
    system: dict[str, Any] = {
        "name": "daint",
        "ssh": {"host": "127.0.0.1", "port": slurm.port, "max_clients": 50, "timeout": seconds},
        "scheduler": {"type": "slurm", "connection_mode": "ssh", "version": "22.05.8", "timeout": 20},
        "service_account": {"client_id": "health", "secret": "planted-secret"},
        "probing": {
            "interval_check": 3600,
            "services": {"filesystem": {"timeout": 20}, "scheduler": {"timeout": 20}},
        },
        "file_systems": [{"path": str(folder / "users"), "data_type": "users", "default_work_dir": True}],
        "data_operation": {
            "max_ops_file_size": 5 * 1024 * 1024,
            "datatransfer_jobs_directives": ["#SBATCH --time=5"],
            "data_transfer": {
                "service_type": "s3",
                "name": "store",
                "private_url": store.endpoint,
                "public_url": store.endpoint,
                "access_key_id": store.access_key,
                "secret_access_key": store.secret_key,
                "region": store.region,
                "ttl": 3600,
                "multipart": {
                    "use_split": False,
                    "max_part_size": 16 * 1024 * 1024,
                    "parallel_runs": 2,
                    "tmp_folder": str(folder / "tmp"),
                },
            },
        },
    }
    if method == "streamer":
        first = free_port()
        system["data_operation"]["data_transfer"] = {
            "service_type": "streamer",
            "host": "127.0.0.1",
            "public_ips": ["127.0.0.1"],
            "port_range": [first, min(first + 3, 65535)],
        }
    key = (Path(slurm.folder) / "login_key").read_text()
    return {
        "auth": {
            "authentication": {
                "scopes": {},
                "tokenUrl": f"http://127.0.0.1:{issuer}/token",
                "publicCerts": [f"file://{folder}/keys.json"],
                "usernameClaim": "preferred_username",
            }
        },
        "ssh_credentials": {"type": "SSHStaticKeys", "keys": {getpass.getuser(): {"private_key": key}}},
        "clusters": [system],
    }


@pytest.fixture(params=["s3", "streamer"])
def real(
    request: pytest.FixtureRequest, slurm_with_accounting: Slurm, object_store: Buckets, tmp_path: Path
) -> Iterator[RealFirecrest]:
    folder, port, issuer = tmp_path / "real", free_port(), free_port()
    user = getpass.getuser()
    home = folder / "users" / user
    home.mkdir(parents=True)
    config = folder / "config.yaml"
    settings = _configuration(slurm_with_accounting, object_store, folder, issuer, request.param)
    config.write_text(json.dumps(settings))
    log = folder / "server.log"
    words = [f"{_SOURCE}/.venv/bin/python", "-c", _SERVE, str(port), str(issuer), user, f"{folder}/keys.json"]
    environment = {"YAML_CONFIG_FILE": str(config), "PYTHONPATH": f"{_SOURCE}/src", "HOME": str(folder)}
    pid = start(folder, words, log, environment)
    wait_until(lambda: answers(port), pid, log)
    yield RealFirecrest(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{issuer}/token", home, log)
    end_all(folder)


def test_data_and_runs_at_the_real_server(real: RealFirecrest, hibali: Any, tmp_path: Path) -> None:
    bench = Bench(hibali)
    bench.add_site(NAME, real.table())
    hibali("sites", "check", NAME, exit=0)
    tree = tmp_path / "tree"
    contents = {
        "a b/c d & $(touch pwned).txt": b"small",
        "a b/middle": os.urandom(4_000_000),
        "a b/large": os.urandom(6 * 1024 * 1024),
        "plain": b"x",
    }
    for name, content in contents.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(content)
    hibali("push", tree, f"{NAME}:data", exit=0, timeout=400)
    assert hibali("push", tree, f"{NAME}:data", "--json", exit=0, timeout=400).last["files_moved"] == 0
    hibali("verify", tree, f"{NAME}:data", exit=0, timeout=400)
    hibali("pull", f"{NAME}:data", tmp_path / "back", exit=0, timeout=400)
    assert {name: (tmp_path / "back" / name).read_bytes() for name in contents} == contents
    ended = bench.run(bench.answers(), "--wait", exit=0).last
    assert ended["state"] == "SUCCEEDED"
    running = bench.run(bench.answers(sleep=600), exit=0).last["id"]
    hibali("runs", "cancel", running, exit=0)
    hibali("rm", "--recursive", "--yes", f"{NAME}:data", exit=0, timeout=200)
    assert not (real.home / "data").exists()
