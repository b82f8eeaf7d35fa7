"""Test parsing config.toml, and the messages about its errors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hibali.amounts import read_duration, read_job_time, read_size, split_command
from hibali.config.model import (
    ContainerSettings,
    GlobusSettings,
    Gpus,
    GridftpSettings,
    Limits,
    Purge,
    Reached,
    S3Settings,
    SchedulerSettings,
    Site,
    SshSettings,
)
from hibali.config.settings import (
    Settings,
    SettingsError,
    load_sites,
    parse_settings,
    require_built,
    require_built_for_runs,
)
from hibali.errors import RefusedError, UsageError

CONTRACT = """
version = 1

[sites.juwels]
kind = "ssh"                     # ssh | s3 | local | url
default_root = "project"
work = "@scratch/hibali"
roots = { project = "/p/project1/x", scratch = "$SCRATCH/x", archive = "/arch/x" }
read_only = ["archive"]
[sites.juwels.ssh]
host = "juwels"
data_hosts = ["judac01", "judac02"]
command = ["gsissh", "-p", "2222"]
auth = "gsi"
transport = "sftp"
python = "python3.9"
logins = 2
channels = 4
persist = "no"
[sites.juwels.reached_from.jureca]
host = "me@juwels-data"
port = 2222
command = ["ssh", "-i", "key"]
[sites.juwels.reached_from.jusuf]
[sites.juwels.globus]
collection = "a0a0a0a0-1111-2222-3333-444444444444"
paths = { "/p/scratch" = "/scratch" }
[sites.juwels.gridftp]
url = "gsiftp://gridftp.juwels.test:2811/"
paths = { "/p" = "/" }
use = "never"
least = "1G"
connections = 8
[sites.juwels.scheduler]
name = "slurm"
account = "brain"
partition = "batch"
transfer_partition = "xfer"
time = "01:00:00"
directives = ["--mail-type=NONE"]
prologue = ["module load Apptainer"]
nodes = 2
tasks = 8
cores = 4
memory = "16G"
gpus = 1
reservation = "course"
mpi = "srun --mpi=pmix"
[sites.juwels.container]
name = "apptainer"
[sites.juwels.gpus]
per_node = 4
kind = "amd"
[sites.juwels.limits]
queued_jobs = 100
array_size = 1000
poll = "60s"
login_interval = "10s"
bandwidth = "500M"
lease = "5m"
reconnect = "30m"
settling = "5m"
[sites.juwels.purge]
root = "scratch"
days = 90
by = "mtime"
refresh_times = false

[sites.bucket]
kind = "s3"
[sites.bucket.s3]
endpoint = "https://s3.example.org"
bucket = "b"
prefix = "top/"
credentials_command = ["pass-helper", "b"]
[sites.bucket.limits]
requests = 50
connections = 8

[sites.here]
kind = "local"
roots = { data = "/data" }
"""


def parse(text: str) -> dict[str, Site]:
    return parse_settings(text, Path("/c/config.toml")).sites


def problems_of(text: str) -> list[tuple[int, str]]:
    with pytest.raises(SettingsError) as caught:
        parse(text)
    assert caught.value.exit == 2
    return [(found["line"], found["key"]) for found in caught.value.problems]


def test_every_key_of_the_contract_is_read() -> None:
    sites = parse(CONTRACT)
    assert sites["juwels"] == Site(
        name="juwels",
        kind="ssh",
        default_root="project",
        work="@scratch/hibali",
        roots={"project": "/p/project1/x", "scratch": "$SCRATCH/x", "archive": "/arch/x"},
        read_only=("archive",),
        ssh=SshSettings(
            "juwels",
            None,
            ("judac01", "judac02"),
            ("gsissh", "-p", "2222"),
            "gsi",
            "sftp",
            "python3.9",
            2,
            4,
            persist_seconds=0,
        ),
        reached_from={
            "jureca": Reached("me@juwels-data", 2222, ("ssh", "-i", "key")),
            "jusuf": Reached(),
        },
        globus=GlobusSettings("a0a0a0a0-1111-2222-3333-444444444444", {"/p/scratch": "/scratch"}),
        gridftp=GridftpSettings("gsiftp://gridftp.juwels.test:2811", {"/p": "/"}, "never", 1 << 30, 8),
        scheduler=SchedulerSettings(
            "slurm",
            "brain",
            "batch",
            "xfer",
            "01:00:00",
            ("--mail-type=NONE",),
            ("module load Apptainer",),
            nodes=2,
            tasks=8,
            cores=4,
            memory=16 * 1024**3,
            gpus=1,
            reservation="course",
            mpi=("srun", "--mpi=pmix"),
        ),
        container=ContainerSettings("apptainer"),
        gpus=Gpus(4, "amd"),
        limits=Limits(
            100,
            1000,
            60.0,
            10.0,
            500 * 1024**2,
            lease_seconds=300,
            reconnect_seconds=1800.0,
            settling_seconds=300.0,
        ),
        purge=Purge("scratch", 90),
    )
    assert sites["bucket"].s3 == S3Settings(
        "https://s3.example.org", "b", "top", credentials_command=("pass-helper", "b")
    )
    assert sites["bucket"].limits == Limits(requests=50, connections=8)
    assert sites["here"].roots == {"data": "/data"}


def test_all_errors_are_reported_together_with_their_lines() -> None:
    text = """version = 1
colour = "red"
[sites.juwels]
kind = "ssh"
read_only = [
  "d",
]
roots = { b = "relative" }
default_root = "c"
[sites.juwels.ssh]
hosst = "x"
logins = "two"
[sites.juwels.limits]
poll = "60 parsecs"
lease = "2s"
[sites.here]
kind = "lokal"
"""
    assert problems_of(text) == [
        (2, "colour"),
        (5, "sites.juwels.read_only"),
        (8, "sites.juwels.roots.b"),
        (9, "sites.juwels.default_root"),
        (10, "sites.juwels.ssh"),
        (11, "sites.juwels.ssh.hosst"),
        (12, "sites.juwels.ssh.logins"),
        (14, "sites.juwels.limits.poll"),
        (15, "sites.juwels.limits.lease"),
        (17, "sites.here.kind"),
    ]


def test_a_similar_key_is_suggested_for_an_unknown_one() -> None:
    with pytest.raises(SettingsError) as caught:
        parse('[sites.xx]\nkind = "local"\nrotos = {}\n')
    assert "did you mean roots?" in caught.value.message


def test_toml_that_does_not_parse_names_its_line() -> None:
    assert problems_of('version = 1\n[sites.xx\nkind = "local"\n')[0][0] == 2


@pytest.mark.parametrize(
    "line",
    [
        'secret_access_key = "x"',
        'endpoint = "http://s3.example.org"',
        'endpoint = "https://user:pw@s3.example.org"',
        'endpoint = "ftp://s3.example.org"',
        'endpoint = "https://[broken"',
        'prefix = "/a"',
        'bucket = "a/b"',
        'profile = "p"\nanonymous = true',
    ],
)
def test_object_store_settings_allow_no_secrets_and_require_https(line: str) -> None:
    start = "" if line.startswith("endpoint") else 'endpoint = "aws"\n'
    assert problems_of(f'[sites.xx]\nkind = "s3"\n[sites.xx.s3]\n{start}{line}\n')


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1:8333", "[::1]:80"])
def test_plain_http_is_for_this_machine_alone(host: str) -> None:
    assert parse(f'[sites.xx]\nkind = "s3"\n[sites.xx.s3]\nendpoint = "http://{host}"\n')


@pytest.mark.parametrize(
    "line",
    [
        'host = "-oProxyCommand=x"',
        'host = "a b"',
        'host = "a"\ncommand = []',
        'host = "a"\npython = "python3; rm"',
        'host = "a"\npersist = "30d"',
        'host = "a"\nlogins = 0',
        'host = "a"\nlogins = true',
    ],
)
def test_hosts_that_look_like_ssh_options_are_refused(line: str) -> None:
    assert problems_of(f'[sites.xx]\nkind = "ssh"\n[sites.xx.ssh]\n{line}\n')


def test_errors_in_reached_from_have_line_numbers() -> None:
    text = """[sites.south]
kind = "ssh"
[sites.south.ssh]
host = "south"
[sites.south.reached_from.north]
host = "-oProxyCommand=x"
port = 70000
command = []
hots = "a"
[sites.south.reached_from.south]
[sites.south.reached_from._north]
"""
    assert problems_of(text) == [
        (6, "sites.south.reached_from.north.host"),
        (7, "sites.south.reached_from.north.port"),
        (8, "sites.south.reached_from.north.command"),
        (9, "sites.south.reached_from.north.hots"),
        (10, "sites.south.reached_from.south"),
        (11, "sites.south.reached_from._north"),
    ]
    assert problems_of('[sites.xx]\nkind = "local"\n[sites.xx.reached_from.yy]\n') == [
        (3, "sites.xx.reached_from")
    ]


@pytest.mark.parametrize(
    "line",
    [
        'account = "a\\n#SBATCH"',
        'prologue = ["a\\nb"]',
        'time = "soon"',
        'partition = "-x"',
        'time = "10:30"',
        'time = "60"',
        'time = "00:00:00"',
        'reservation = "a b"',
        "nodes = 0",
        "tasks = -1",
        "cores = 1.5",
        "gpus = true",
        "memory = 16",
        'memory = "much"',
        'mpi = "srun \'"',
        "mpi = []",
        "mpi = 3",
        'name = "Slurm!"',
    ],
)
def test_scheduler_values_are_single_words_and_lines(line: str) -> None:
    start = "" if line.startswith("name") else 'name = "slurm"\n'
    assert problems_of(f'[sites.xx]\nkind = "local"\n[sites.xx.scheduler]\n{start}{line}\n')


def test_a_launcher_is_a_command_line_or_a_list() -> None:
    start = '[sites.xx]\nkind = "local"\n[sites.xx.scheduler]\nname = "slurm"\n'
    for line in ('mpi = "mpirun --bind-to none"', 'mpi = ["mpirun", "--bind-to", "none"]'):
        found = parse(f"{start}{line}\n")["xx"].scheduler
        assert found is not None
        assert found.mpi == ("mpirun", "--bind-to", "none")


def test_errors_in_gpus_have_line_numbers() -> None:
    start = '[sites.xx]\nkind = "local"\n[sites.xx.gpus]\n'
    assert parse(f"{start}per_node = 2\n")["xx"].gpus == Gpus(2, "nvidia")
    assert problems_of(f'{start}kind = "matrox"\nper_nod = 2\n') == [
        (3, "sites.xx.gpus"),
        (4, "sites.xx.gpus.kind"),
        (5, "sites.xx.gpus.per_nod"),
    ]
    assert problems_of(f"{start}per_node = 0\n") == [(4, "sites.xx.gpus.per_node")]
    store = '[sites.xx]\nkind = "s3"\n[sites.xx.s3]\nendpoint = "aws"\n[sites.xx.gpus]\nper_node = 1\n'
    assert problems_of(store) == [(5, "sites.xx.gpus")]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("00:00:01", 1),
        ("100:00:00", 360000),
        ("1-00:00:00", 86400),
        ("1:2:3", 3723),
        ("90m", 5400),
        ("1h30m", 5400),
        ("2D", 172800),
        ("0.5s", 1),
    ],
)
def test_times_of_jobs_are_read(text: str, seconds: int) -> None:
    assert read_job_time(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "1:2", "90", "a:b:c", "-1:00:00", "1:2:3:4", "٣:00:00", "1:60:00", "0s", "soon"]
)
def test_invalid_job_times_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_job_time(text)


def test_tables_of_another_kind_do_not_belong() -> None:
    assert problems_of('[sites.xx]\nkind = "local"\n[sites.xx.ssh]\nhost = "a"\n') == [(3, "sites.xx.ssh")]


def test_limits_that_a_kind_does_not_keep_do_not_belong() -> None:
    found = problems_of('[sites.xx]\nlimits = { requests = 5, connections = 2 }\nkind = "local"\n')
    assert found == [(2, "sites.xx.limits.connections"), (2, "sites.xx.limits.requests")]


@pytest.mark.parametrize("line", ["requests = -1", "requests = 0.5", 'connections = "2"'])
def test_limits_of_requests_are_whole_numbers(line: str) -> None:
    store = f'[sites.xx]\nkind = "s3"\ns3.endpoint = "aws"\n[sites.xx.limits]\n{line}\n'
    assert problems_of(store) == [(5, f"sites.xx.limits.{line.partition(' ')[0]}")]


@pytest.mark.parametrize(
    "text", ["version = 2\n", "version = true\n", "sites = 3\n", "[sites.X]\nkind='local'\n"]
)
def test_the_top_level_of_the_file_is_checked(text: str) -> None:
    assert problems_of(text)


def test_without_a_file_there_are_no_sites(tmp_path: Path) -> None:
    assert load_sites(str(tmp_path / "none.toml")).sites == {}


def test_a_file_that_others_can_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("version = 1\n")
    path.chmod(0o666)
    with pytest.raises(RefusedError):
        load_sites(str(path))


def test_the_environment_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "other.toml"
    path.write_text('[sites.here]\nkind = "local"\n')
    path.chmod(0o600)
    monkeypatch.setenv("HIBALI_CONFIG", str(path))
    assert list(load_sites().sites) == ["here"]


def test_a_file_that_is_not_text_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"\xff\xfe")
    path.chmod(0o600)
    with pytest.raises(UsageError):
        load_sites(str(path))


def test_similar_names_are_suggested_for_an_unknown_site() -> None:
    settings = Settings(Path("/c"), parse(CONTRACT))
    with pytest.raises(UsageError) as caught:
        settings.site("juwls")
    assert "juwels" in caught.value.hint


def test_unsupported_settings_are_reported_when_used() -> None:
    sites = parse(CONTRACT)
    with pytest.raises(UsageError) as caught:
        require_built(Site("xx", "url", url="smb://example.org/x"))
    assert (caught.value.code, caught.value.exit) == ("not-built", 2)
    require_built(sites["juwels"])
    require_built(sites["bucket"])
    podman = parse('[sites.xx]\nkind="local"\n[sites.xx.container]\nname="podman"\n')["xx"]
    require_built_for_runs(podman)
    charliecloud = parse('[sites.xx]\nkind="local"\n[sites.xx.container]\nname="no-such"\n')["xx"]
    with pytest.raises(UsageError):
        require_built_for_runs(charliecloud)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60s", 60), ("10m", 600), ("1h30m", 5400), ("2d", 172800), ("90", 90), ("0.5s", 0.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("500M", 500 * 1024**2),
        ("2GiB", 2 * 1024**3),
        ("1KB", 1000),
        ("1.5k", 1536),
        ("7B", 7),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert read_size(text) == size


@given(st.text(max_size=20), st.sampled_from([read_duration, read_size, split_command]))
def test_invalid_quantities_raise_value_errors_only(text: str, read: Callable[[str], object]) -> None:
    with suppress(ValueError):
        read(text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["kind", "ssh", "s3", "roots", "limits", "scheduler", "purge", "work", "globus", "gridftp", "read_only"]
)


@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_any_table_is_read_or_an_error(table: dict[str, object]) -> None:
    from hibali.config.schema import Wrong
    from hibali.config.settings import read_document

    wrong: list[Wrong] = []
    read_document({"sites": {"xx": table}}, wrong)
    assert all(found.message for found in wrong)


SITE = '[sites.{}]\nkind = "local"\n'


@pytest.mark.parametrize("name", ["Juwels", "lab_HPC", "ABC", "a1"])
def test_names_of_sites_have_letters_digits_dashes_and_underscores(name: str) -> None:
    assert name in parse_settings(SITE.format(name), Path("c")).sites


@pytest.mark.parametrize("name", ["a", "1a", "_a", "'ä1'", "'a b'", "'a:b'"])
def test_a_bad_name_of_a_site_is_explained_in_words(name: str) -> None:
    with pytest.raises(SettingsError, match="a letter, then at least one letter, digit, - or _"):
        parse_settings(SITE.format(name), Path("c"))


def test_names_that_differ_only_by_case_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"line 3: sites\.lab: its name differs from that of Lab only"):
        parse_settings(SITE.format("Lab") + SITE.format("lab"), Path("c"))


def test_the_default_site_is_a_site_of_the_file_or_that_of_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "c.toml"
    file.write_text('default_site = "lab"\n' + SITE.format("lab") + SITE.format("far"))
    file.chmod(0o600)
    assert load_sites(str(file)).default_site == "lab"
    monkeypatch.setenv("HIBALI_SITE", "far")
    assert load_sites(str(file)).default_site == "far"
    with pytest.raises(
        SettingsError, match=r"line 1: default_site: 'lap' is not one of the sites\. Did you mean lab"
    ):
        parse_settings('default_site = "lap"\n' + SITE.format("lab"), Path("c"))
