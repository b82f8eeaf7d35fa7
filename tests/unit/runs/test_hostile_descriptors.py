"""Test that hostile descriptors and answers are refused before anything is staged."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from hibali.config.model import local_site
from hibali.errors import HibaliError
from registry.advice import find_advice
from registry.descriptor import read_descriptor
from registry.invocation import check_invocation
from runs.containers.base import Started, find_consent_reasons, load_container
from runs.inputs import list_inputs
from runs.model import Input
from runs.prepare import Prepared, prepare
from runs.request import ComputeSite, Request, Workload
from runs.schedulers.slurm import SCHEDULER as SLURM
from tests.end_to_end.run_tools import DESCRIPTOR, doing

RUN = "20260102-030405-0a1b2c3d"
IMAGE = {"type": "docker", "image": "a/b"}


def prepared(change: dict[str, Any], answers: dict[str, Any], word: str = "bubblewrap") -> Prepared:
    document = {**copy.deepcopy(DESCRIPTOR), "container-image": IMAGE, **change}
    pipeline = read_descriptor(json.dumps(document).encode(), "tool.json")
    container = load_container(word)
    container.image_name(pipeline.container)
    invocation = check_invocation(pipeline, {"in": "x", **answers})
    inputs = [
        Input(each.id, each.number, each.text, "name", source="/c/0") for each in list_inputs(invocation)
    ]
    request = Request(Workload(pipeline, invocation), ComputeSite(local_site(), SLURM, container))
    return prepare(request, inputs, RUN, f"/w/runs/{RUN}", image=Started("e" * 64))


def output(template: str, **more: Any) -> dict[str, Any]:
    return {"output-files": [{"id": "o", "name": "o", "path-template": template, **more}]}


def image(**more: Any) -> dict[str, Any]:
    return {"container-image": {**IMAGE, **more}}


def variable(name: str, value: str = "x") -> dict[str, Any]:
    return {"environment-variables": [{"name": name, "value": value}]}


def configured(path: str, *lines: str) -> dict[str, Any]:
    kept = {"id": "kept", "name": "kept", "path-template": "[OUT]"}
    made = {"id": "made", "name": "made", "path-template": path, "file-template": list(lines)}
    return {"output-files": [kept, made]}


# A change to the descriptor, and answers: each pair is one attack (docs/untrusted-pipelines.md).
ATTEMPTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    # an interpreter that is not a shell, or additional options for it
    ({"shell": "/bin/sh -c 'touch pwned' #"}, {}),
    ({"shell": "python3"}, {}),
    ({"shell": "/tmp/evil/bash"}, {}),
    ({"shell": "./sh"}, {}),
    ({"shell": "/bin/bash -i"}, {}),
    ({"shell": "/bin/sh\n#SBATCH --job-name=evil"}, {}),
    # outputs outside the work folder, from the descriptor and from the answers
    (output("../../exit.json"), {}),
    (output("/etc/passwd"), {}),
    (output("a/../../b"), {}),
    (output("[OUT]"), {"out": "../../../.ssh/authorized_keys"}),
    (output("[OUT]"), {"out": "/root/.ssh/id_rsa"}),
    (output("[OUT]/x"), {"out": ".."}),
    (output("[OUT]", optional=True), {"out": "a/../../b"}),
    (output(".[OUT]"), {"out": "./exit.json"}),
    (output("[OUT]"), {"out": "a\0b"}),
    (output("[OUT]"), {"out": "\udcff"}),
    # configuration files outside the work folder, or with values that are executed
    (configured("../start", "exec touch pwned"), {}),
    (configured("/w/runs/x/command", "x"), {}),
    (configured("[SAY]", "x"), {"say": "../command"}),
    (configured("do.sh", "echo [SAY]"), {"say": "$(touch pwned)"}),
    (configured("do.py", "x = '[SAY]'"), {"say": "';import os;'"}),
    (configured("plain", "#!/bin/sh", "[SAY]"), {"say": "x; touch pwned"}),
    (configured("a.txt", "say = [SAY]"), {"say": "x\n[other]\nsay = y"}),
    # variables that affect programs outside the tool
    *(
        (variable(name), {})
        for name in ("LD_PRELOAD", "BASH_ENV", "ENV", "PYTHONSTARTUP", "SHELLOPTS", "PS4")
    ),
    *((variable(name), {}) for name in ("APPTAINER_BIND", "SINGULARITYENV_LD_PRELOAD", "DOCKER_HOST")),
    *((variable(name), {}) for name in ("SHIFTER_VOLUME", "SLURM_CONF", "SBATCH_WRAP", "HIBALI_LOGIN")),
    *((variable(name), {}) for name in ("A=B", "A B", "A\n#SBATCH --x", "1A", "$(id)")),
    (variable("A", "[SAY]"), {"say": "a\0b"}),
    # options of containers
    *(
        (image(**{"container-opts": [option]}), {})
        for option in (
            "--privileged",
            "-v /:/host",
            "--volume=/:/host",
            "--mount=type=bind,src=/,dst=/host",
            "--network=host",
            "--net=host",
            "--pid=host",
            "--ipc=host",
            "--cap-add=SYS_ADMIN",
            "--device=/dev/sda",
            "--security-opt=seccomp=unconfined",
            "--user=0",
            "--userns=host",
            "--entrypoint=/bin/sh",
            "-e LD_PRELOAD=/x",
            "--env-file=/etc/passwd",
            "--rm --privileged",
            "--shm-size=1g;id",
            "$(id)",
            "-e 'A",
        )
    ),
    # images whose names are options or shell text
    *((image(image=name), {}) for name in ("--privileged", "a b", "$(id)", "a;b", "a\nb", "../../x y")),
    (image(index="--x"), {}),
    # a work folder in the container that is not a private folder
    *((image(**{"working-directory": folder}), {}) for folder in ("relative", "/", "/a/../b", "/a/", "/./a")),
    # an entry point gets arguments, never shell text
    ({**doing("x; touch pwned"), **image(entrypoint=True)}, {}),
    ({**doing("x | touch pwned"), **image(entrypoint=True)}, {}),
    # the author's own quotes, which a value would close
    (doing("echo '[SAY]'"), {"say": "'; touch pwned; '"}),
    (doing('echo "[SAY]"'), {"say": "$(touch pwned)"}),
    (doing("echo `cat [SAY]`"), {"say": "x; touch pwned"}),
    (doing("cat <<E\n[SAY]\nE"), {"say": "x\nE\ntouch pwned"}),
    (doing("eval [SAY]x $[SAY]"), {"say": "(touch pwned)"}),
    # conditions are compared, never evaluated
    (
        {
            "output-files": [
                {
                    "id": "o",
                    "name": "o",
                    "optional": True,
                    "conditional-path-template": [{"__import__('os').system('touch pwned')": "[OUT]"}],
                }
            ]
        },
        {},
    ),
    # resources that no scheduler accepts
    ({"suggested-resources": {"cpu-cores": 10**30}}, {}),
    ({"suggested-resources": {"ram": 1e300}}, {}),
    ({"suggested-resources": {"cpu-cores": "1\n#SBATCH --x"}}, {}),
    ({"suggested-resources": {"walltime-estimate": -1}}, {}),
    ({"custom": {"hibali": {"gpus": 1}}}, {}),
]


@pytest.mark.parametrize(("change", "answers"), ATTEMPTS, ids=range(len(ATTEMPTS)))
def test_hostile_values_are_rejected_before_staging(change: dict[str, Any], answers: dict[str, Any]) -> None:
    with pytest.raises(HibaliError) as refused:
        prepared(change, answers)
    assert int(refused.value.exit) in {2, 8}


@pytest.mark.parametrize("word", ["bare", "podman", "bubblewrap"])
def test_harmless_variants_are_accepted(word: str) -> None:
    """Only the attacks are refused, not all descriptors with the same features."""
    change = {
        **doing("cat [IN] >[OUT]"),
        **variable("A", "[SAY]"),
        **configured("a.txt", "say = [SAY]"),
        "shell": "/usr/local/bin/bash",
        "suggested-resources": {"cpu-cores": 1, "ram": 0.5},
    }
    found = prepared(change, {"out": "a/../b", "say": "$(id) [OUT]"}, word)
    assert [each.path for each in found.outputs] == ["b"]
    assert found.configuration_files == {"a.txt": "say = $(id) [OUT]"}
    assert "/usr/local/bin/bash" not in found.start + found.command


def test_custom_fields_are_not_directives() -> None:
    """Only integers of the two known fields are read."""
    wild = {"hibali": {"tasks": "1\n#SBATCH --x", "directives": ["--wrap=x"], "mpi": "sh -c"}}
    assert prepared({"custom": wild}, {}).job_script == prepared({}, {}).job_script


RISKY = [
    "PATH",
    "GLIBC_TUNABLES",
    "GCONV_PATH",
    "LOCPATH",
    "NLSPATH",
    "HOSTALIASES",
    "PERL5OPT",
    "PERL5LIB",
    "NODE_OPTIONS",
    "RUBYOPT",
    "JAVA_TOOL_OPTIONS",
    "GIT_SSH_COMMAND",
    "GIT_DIR",
    "PROMPT_COMMAND",
    "http_proxy",
    "HTTPS_PROXY",
    "All_Proxy",
    "no_proxy",
    "BASH_FUNC_x",
    "OPENSSL_CONF",
    "R_PROFILE_USER",
]


@pytest.mark.heavy
@pytest.mark.parametrize("word", ["bubblewrap", "apptainer", "podman", "bare"])
@pytest.mark.parametrize("name", RISKY)
def test_variables_that_change_programs_need_consent(name: str, word: str) -> None:
    """Test the descriptor and the options of its container, which a site without containers ignores."""
    container = load_container(word)
    option = image(**{"container-opts": [f"-e {name}=/work/x"]})
    for change in (variable(name), option) if container.isolates else (variable(name),):
        pipeline = read_descriptor(
            json.dumps({**DESCRIPTOR, "container-image": IMAGE, **change}).encode(), "tool.json"
        )
        assert f"sets {name}:" in find_consent_reasons(pipeline, container)[-1]
    advice = [each.path for each in find_advice({**DESCRIPTOR, **variable(name)})]
    assert advice == ["environment-variables[0].name"]


@pytest.mark.parametrize(
    "name",
    ["FSLDIR", "FREESURFER_HOME", "OMP_NUM_THREADS", "TMPDIR", "HOME", "MNI_DATAPATH", "env_var", "LANG"],
)
def test_common_variables_need_no_consent(name: str) -> None:
    pipeline = read_descriptor(json.dumps({**DESCRIPTOR, **variable(name)}).encode(), "tool.json")
    assert find_consent_reasons(pipeline, load_container("bubblewrap")) == []
    assert find_advice({**DESCRIPTOR, **variable(name)}) == []
