"""Add a site from what the unmodified reference server of the IRI Facility API (version 2) says, with a small adapter for its storage.

The server is not in a package index. These tests run where HIBALI_IRI names a folder with its source (github.com/doe-iri/iri-facility-api-python)
and a virtual environment `.venv` with its dependencies; otherwise they are skipped.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.processes import answers, end_all, free_port, start, wait_until

_SOURCE = os.environ.get("HIBALI_IRI", "")
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(not _SOURCE, reason="HIBALI_IRI names no source of the reference server"),
]
_ADAPTER = """
import datetime
from app.routers.account.facility_adapter import FacilityAdapter as AccountAdapter
from app.routers.status import facility_adapter, models
from app.routers.storage import models as storage
from app.routers.storage.facility_adapter import FacilityAdapter as StorageAdapter
from app.types.user import User

def resource(id, name, kind, endpoint):
    now = datetime.datetime.now(datetime.timezone.utc)
    urn = "urn:doe-iri:resource:" + kind
    return models.Resource(id=id, name=name, site_id="1", resource_type=urn, last_modified=now, supported_endpoints=endpoint)

RESOURCES = [resource("c1", "pm", "compute:system", ["compute"]), resource("f1", "cfs", "storage:filesystem", [])]

async def nothing(*args, **options):
    return []

def concrete(*bases, **methods):
    missing = {name: nothing for base in bases for name in getattr(base, "__abstractmethods__", ())}
    return type("Adapter", bases, {**missing, **methods})

async def resources(self, **options):
    return RESOURCES

async def one(self, id):
    return next((each for each in RESOURCES if each.id == id), None)

async def user_of(self, api_key, client_ip):
    if api_key != "good":
        raise ValueError("bad token")
    return "me"

async def user(self, user_id, api_key, client_ip):
    return User(id="me", name="Me", api_key=api_key)

async def locations(self, resource, user, *filters):
    access = storage.AccessPermissions(read=True, write=True, execute=True)
    home = storage.StorageInstance(logical_name="home", path="/home/me", access=access)
    scratch = storage.StorageInstance(logical_name="scratch", path="/scratch/me", purge_policy_days=56, access=access)
    return [home, scratch] if resource.id == "f1" else [scratch]

async def endpoints(self, resource, user, *filters):
    uuid = "9d6d994a-6d04-11e5-ba46-22000b92c6ec"
    common = {"id": "1", "resource_id": "f1", "capabilities": ["read"], "auth_type": "x"}
    return [
        storage.AccessEndpoint(protocol="globus", endpoint_id=uuid, root_path="/", **common),
        storage.AccessEndpoint(protocol="xrootd", endpoint="root://x/", **common),
        storage.AccessEndpoint(protocol="s3", bucket="brains", endpoint_url="https://s3.example.org", **common),
    ]

login = {"get_current_user": user_of, "get_user": user}
Status = concrete(facility_adapter.FacilityAdapter, get_resources=resources, get_resource=one)
Account = concrete(AccountAdapter, **login)
Storage = concrete(StorageAdapter, get_locations=locations, get_access_endpoints=endpoints, **login)
"""


@pytest.fixture(params=[True, False], ids=["storage", "none"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    (tmp_path / "adapter.py").write_text(_ADAPTER)
    port, log = free_port(), tmp_path / "server.log"
    names = ("status", "account", *(["storage"] if request.param else []))
    environment = {f"IRI_API_ADAPTER_{name}": f"adapter.{name.capitalize()}" for name in names}
    words = [f"{_SOURCE}/.venv/bin/uvicorn", "app.main:APP", "--port", str(port)]
    pid = start(tmp_path, words, log, {**environment, "PYTHONPATH": f"{_SOURCE}:{tmp_path}"})
    wait_until(lambda: answers(port), pid, log)
    yield f"http://127.0.0.1:{port}/api/v2"
    end_all(tmp_path)


def test_the_reference_server_describes_a_site(url: str, hibali: Any, request: pytest.FixtureRequest) -> None:
    words = ("sites", "add", "pm", "--iri", url, "--dry-run")
    done = hibali(*words, "--credentials-command", "echo good", exit=0)
    found = tomllib.loads(done.out.decode())["sites"]
    assert (found["pm"]["iri"]["system"], found["pm"]["iri"]["filesystem"]) == ("pm", "cfs")
    if "none" in request.node.name:
        assert b"storage/locations: the facility did not answer" in done.err
        assert set(found) == {"pm"}
    else:
        assert found["pm"]["roots"] == {
            "home": {"path": "/home/me", "nodes": False},
            "scratch": "/scratch/me",
        }
        assert found["pm"]["purge"] == {"root": "scratch", "days": 56}
        assert set(found) == {"pm", "pm-globus", "pm-s3"}
    assert b"nothing is filled in" in hibali(*words, "--credentials-command", "echo bad", exit=0).err
    assert b"add --credentials-command" in hibali(*words, exit=2).err
