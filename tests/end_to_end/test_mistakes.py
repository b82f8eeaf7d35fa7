"""Test what hibali says to 40 typing errors and 30 misunderstandings, and which habits of other tools it accepts."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hibali_cli.root import run_command

# What was typed after `hibali`, the exit code, and what is said.
TYPING_ERRORS = (
    ("pusch data juwels:data", 2, "No such command 'pusch'. Did you mean 'push'?"),
    ("push --dryrun data juwels:data", 2, "No such option '--dryrun'. Did you mean '--dry-run'?"),
    ("push --dry_run data juwels:data", 2, "No such option '--dry_run'. Did you mean '--dry-run'?"),
    ("push -dry-run data juwels:data", 2, "No such option '-dry-run'. Did you mean '--dry-run'?"),
    ("push --exlude a data juwels:data", 2, "Did you mean one of: '--exclude', '--include'?"),
    ("push -n --delet data juwels:data", 2, "Did you mean one of: '--delete',"),
    ("push data juwel:data", 2, "Did you mean juwels? To list all: hibali sites list"),
    ("push dta juwels:data", 3, "the source does not exist [no-such-source] To see what exists: hibali ls ."),
    (
        "push data juwels",
        2,
        "juwels is a site: juwels: [site-without-colon] For the site, write juwels:PATH.",
    ),
    ("push data juwels/data", 2, "juwels is a site: hibali push data juwels:data"),
    ("pull juwels/data data", 2, "juwels is a site: hibali pull juwels:data data"),
    ("push data juwels::data", 2, "a location has one colon [bad-location] Did you mean juwels:data?"),
    ("push data juwels:@dta", 2, "juwels has no root @dta [bad-location] Did you mean @data?"),
    ("push data 'juwels:$SCRATCH/x'", 2, "make it a root (sites.juwels.roots) and write juwels:@ROOT/"),
    ("push data '~/x'", 2, "the shell did not expand ~"),
    ("pull juwels:dta out", 3, "To see what exists: hibali ls juwels:"),
    ("verify juwels:dta", 3, "it does not exist [no-such-place] To see what exists: hibali ls juwels:"),
    ("pull juwels:data", 2, "Missing argument 'LOCAL'. [usage] For example: hibali pull juwels:"),
    ("push data", 2, "Missing argument 'SITE:PATH'. [usage] For example: hibali push data juwels:"),
    ("ls", 2, "Missing argument 'SITE:PATH'. [usage] For example: hibali ls juwels:"),
    (
        "push data juwels:data extra",
        2,
        "juwels:data: the target is the last argument [wrong-direction] Did you mean: hibali push data extra juwels:data",
    ),
    ("du juwels:data extra", 2, "Usage: hibali du [OPTIONS] SITE:PATH"),
    ("ls juwels", 2, "For the site, write juwels:PATH."),
    ("ls bukcet:", 2, "Did you mean bucket?"),
    ("ls -r juwels:", 2, "No such option '-r'. Did you mean '-R'?"),
    ("ls juwels: --feilds size", 2, "Did you mean '--fields'?"),
    ("sites ad new --ssh new", 2, "sites: No such command 'ad'. Did you mean 'add'?"),
    ("sites lst", 2, "sites: No such command 'lst'. Did you mean 'list'?"),
    ("site list", 2, "No such command 'site'. Did you mean 'sites'?"),
    ("sites add", 2, "Missing argument 'NAME'. [usage] For example: hibali sites add juwels --ssh juwels"),
    ("sites add juwels --ssh other", 8, "To replace it, add --replace."),
    ("sites add new --shh host", 2, "No such option '--shh'. (Did you mean one of:"),
    ("runs lst", 2, "Did you mean 'list'?"),
    ("runs show 123", 3, "To list all runs: hibali runs list"),
    ("run nosuch answers.json", 2, "Name the site, set HIBALI_SITE, or set a default"),
    ("run nosuch answers.json --site juwels", 3, "the catalogue has no such pipeline"),
    ("pipelines addd x.json", 2, "Did you mean 'add'?"),
    ("pipelines add nosuch.json", 3, "Names of files are relative to the current folder."),
    ("config get sites.juwel.kind", 3, "Did you mean sites.juwels.kind?"),
    ("config set sites.juwels.kid s3", 2, "unknown key; did you mean kind?"),
    ("push data juwels:data --max-time tomorow", 2, "is not a duration such as 60s, 10m, 1h30m or 2d"),
    ("push data juwels:data --bwlimit fast", 2, "is not a size such as 4096, 500M or 2GiB"),
    ("push data juwels:data --modes all", 2, "'all' is not one of 'execute', 'keep'."),
    ("-version", 2, "No such option '-version'. Did you mean '--version'?"),
)
MISUNDERSTANDINGS = (
    ("push juwels:data data", 2, "Did you mean: hibali pull juwels:data data"),
    ("pull data juwels:data", 2, "Did you mean: hibali push data juwels:data"),
    ("push data /data/juwels:data", 2, "Did you mean: hibali sync data /data/juwels:data"),
    ("copy data juwels:data", 2, "To copy between these: hibali push data juwels:data"),
    ("cp data data2", 2, "To copy between these: hibali sync data data2"),
    ("mv data juwels:data", 2, "To copy between these: hibali push data juwels:data"),
    ("rm juwels:data", 2, "To remove it with its contents, add --recursive."),
    ("rm -rf juwels:data", 2, "To remove without a question, add --yes."),
    ("push -avz data juwels:data", 2, "add --modes keep for permission bits."),
    ("push -z data juwels:data", 2, "hibali does not compress; ssh does, with `Compression yes`"),
    ("push --transfers 8 data juwels:data", 2, "hibali opens as many channels as are useful"),
    ("sync data juwels:data --delete-after", 2, "--delete deletes at the end"),
    ("rsync -av data juwels:data", 2, "Did you mean 'sync'?"),
    ("check data juwels:data", 2, "Did you mean 'verify'?"),
    ("tree juwels:", 2, "Did you mean 'ls -R'?"),
    ("lsd juwels:", 2, "Did you mean 'ls'?"),
    ("juwels:data", 2, "Did you mean 'ls juwels:data'?"),
    ("ls s3://study/raw", 2, "a URL is no location [bad-location] Add its server as a site"),
    ("push data me@juwels:data", 2, "A user name belongs in ~/.ssh/config (User). Did you mean juwels:...?"),
    ("push data host.example.org:data", 2, "To add a host: hibali sites add NAME --ssh host.example.org"),
    ("transfer juwels:data bucket:data", 2, "Did you mean 'sync'?"),
    ("auth login", 2, "Did you mean 'sites login'?"),
    ("squeue", 2, "Did you mean 'runs list'?"),
    ("sbatch job.sh", 2, "Did you mean 'run'?"),
    ("scancel 123", 2, "Did you mean 'runs cancel'?"),
    ("logs 123", 2, "Did you mean 'runs logs'?"),
    ("runs stop 123", 2, "runs: No such command 'stop'. Did you mean 'cancel'?"),
    ("sites rm juwels", 2, "sites: No such command 'rm'. Did you mean 'remove'?"),
    ("install fsl", 2, "Did you mean 'pipelines add'?"),
    ("version", 2, "Did you mean '--version'?"),
)
# Options of other tools for what hibali does anyway, and the same without them.
HABITS = (
    ("ls -la juwels:", "ls -l juwels:"),
    ("ls -lh juwels:", "ls -l juwels:"),
    ("ls -lah juwels:", "ls -l juwels:"),
    ("ls --all --human-readable juwels:", "ls juwels:"),
    ("du -sh juwels:", "du juwels:"),
    ("du -s juwels:", "du juwels:"),
    ("mkdir -p juwels:new/er", "mkdir juwels:new/er"),
    ("cp -r -n juwels:data juwels:copy", "cp -n juwels:data juwels:copy"),
    ("push -rn data juwels:copy", "push -n data juwels:copy"),
    ("pull -nP juwels:data new", "pull -n juwels:data new"),
    ("sync -n --recursive --progress data juwels:copy", "sync -n data juwels:copy"),
    ("ls -h", "ls --help"),
    ("du -h juwels:", "du --help"),
    ("-V", "--version"),
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a configuration with two sites, and a current folder with data."""
    for each in ("store/data", "work/data"):
        (tmp_path / each).mkdir(parents=True)
    (tmp_path / "work/data/a").write_text("x")
    (tmp_path / "work/answers.json").write_text("{}")
    config = tmp_path / "config.toml"
    config.write_text(
        f'[sites.juwels]\nkind = "local"\ndefault_root = "data"\nroots = {{data = "{tmp_path}/store"}}\n'
        '[sites.bucket]\nkind = "s3"\ns3 = {endpoint = "https://s3.example.org", bucket = "study"}\n'
    )
    config.chmod(0o600)
    monkeypatch.setenv("HIBALI_CONFIG", str(config))
    monkeypatch.setenv("HIBALI_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "code", "said"), [*TYPING_ERRORS, *MISUNDERSTANDINGS], ids=lambda value: str(value)[:40]
)
def test_a_mistake_is_explained(
    home: Path, capsys: pytest.CaptureFixture[str], typed: str, code: int, said: str
) -> None:
    assert run_command(shlex.split(typed)) == code
    read = capsys.readouterr()
    assert said in " ".join(read.err.split())
    assert "hibali: hibali" not in read.err
    assert read.out == ""
    assert [path.name for path in (home / "store").iterdir()] == ["data"]
    assert not list((home / "store/data").iterdir())


@pytest.mark.parametrize(("typed", "meant"), HABITS)
def test_a_habit_is_accepted(capsys: pytest.CaptureFixture[str], typed: str, meant: str) -> None:
    printed = []
    for each in (typed, meant):
        assert run_command(shlex.split(each)) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


@pytest.mark.parametrize(
    ("typed", "said"),
    [("runs list", "hibali run PIPELINE"), ("pipelines list", "hibali pipelines add FILE")],
)
def test_an_empty_list_says_how_to_begin(capsys: pytest.CaptureFixture[str], typed: str, said: str) -> None:
    assert run_command(shlex.split(typed)) == 0
    assert said in capsys.readouterr().err
