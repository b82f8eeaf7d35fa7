"""Decide which environment variables a pipeline may set, and which only with the user's consent (S10)."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFUSED = re.compile(
    r"LD_.*|BASH_ENV|ENV|SHELLOPTS|BASHOPTS|PS4|IFS|PYTHON.*|HIBALI_.*"  # how programs and shells start
    r"|APPTAINER.*|SINGULARITY.*|DOCKER_.*|PODMAN_.*|CONTAINERS_.*|CH_.*|SARUS_.*|SHIFTER.*"  # what runtimes read
    r"|SLURM_.*|SBATCH_.*|SRUN_.*|OAR_.*|PBS_.*|SGE_.*|LSB_.*",  # what schedulers say and read
    re.DOTALL,
)
# Published tools set some of these (PATH, CLASSPATH, R_LIBS), so that they are not refused outright.
_CONSENT = re.compile(
    r"PATH|(?i:.*_proxy)"
    # what glibc drops for privileged programs (sysdeps/generic/unsecvars.h) but TMPDIR, and macOS' loader
    r"|GLIBC_TUNABLES|GCONV_PATH|GETCONF_DIR|HOSTALIASES|LOCALDOMAIN|LOCPATH|MALLOC_TRACE|NIS_PATH|NLSPATH"
    r"|RESOLV_HOST_CONF|RES_OPTIONS|TZDIR|DYLD_.*"
    # shells, and programs that other programs start
    r"|PROMPT_COMMAND|BASH_.*|CDPATH|FPATH|ZDOTDIR|GLOBIGNORE|EXECIGNORE|INPUTRC|SHELL|PS[0-3]"
    r"|EDITOR|VISUAL|FCEDIT|PAGER|MANPAGER|BROWSER|LESSOPEN|LESSCLOSE|MAKEFLAGS|MAKEFILES|GCC_EXEC_PREFIX|COMPILER_PATH"
    # interpreters: options, modules and start-up files
    r"|PERL.*|RUBY.*|GEM_.*|BUNDLE_.*|NODE_.*|NPM_.*|JAVA_TOOL_OPTIONS|JDK_JAVA_OPTIONS|_JAVA_.*|CLASSPATH"
    r"|R_(?:LIBS|PROFILE|ENVIRON|HOME|TESTS).*|JULIA_.*|LUA_.*|PHPRC|PHP_INI_SCAN_DIR|TCLLIBPATH|TCL_LIBRARY"
    r"|MATLABPATH|OCTAVE_.*|GUILE_.*"
    # network clients: what they run, whom they trust, where they connect
    r"|GIT_.*|SSH_.*|SSL_CERT_.*|OPENSSL_.*|CURL_HOME|CURL_CA_BUNDLE|REQUESTS_CA_BUNDLE|WGETRC|NETRC|RSYNC_.*"
    r"|KRB5.*|X509_.*",
    re.DOTALL,
)


def is_safe_variable(name: str) -> bool:
    """Whether a pipeline may set it, with the user's consent where `needs_consent` asks for that."""
    return _NAME.fullmatch(name) is not None and _REFUSED.fullmatch(name) is None


def needs_consent(names: Iterable[str]) -> list[str]:
    """Those of the variables that change which programs run, what they load or where they connect."""
    return [name for name in names if _CONSENT.fullmatch(name)]
