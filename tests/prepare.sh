#!/bin/sh
# Prepare a clone: `sh tests/prepare.sh environment` creates .venv from requirements.lock, with the pip of tests/pip.lock, when it is out of date,
# `sh tests/prepare.sh packages` installs the missing Debian packages of tests/packages.txt, as root,
# `sh tests/prepare.sh swift` creates .cache/swift from tests/swift.lock, for the tests marked heavy and the benchmarks,
# `sh tests/prepare.sh crates` creates .cache/crates from tests/crates.lock, for the tests marked heavy,
# `sh tests/prepare.sh axe` creates .cache/axe from tests/axe.lock, for the tests marked heavy,
# `sh tests/prepare.sh bids` creates .cache/bids from tests/bids.lock, with readers of BIDS datasets, for the tests marked heavy,
# `sh tests/prepare.sh torque` unpacks Slurm's qsub commands into .cache/torque, for the tests marked heavy,
# `sh tests/prepare.sh snakemake` creates .cache/snakemake from tests/snakemake.lock, for the tests marked heavy; so do `parsl`, `dask`, `radical`, `globus`, `rest`, `cwl`, `psij`, `nipoppy`, `podman-hpc` and `delivery`,
# `sh tests/prepare.sh fsspec` creates .cache/fsspec from tests/fsspec.lock, and .cache/azurite from tests/azurite/, for the tests marked heavy,
# `sh tests/prepare.sh hdfs` unpacks HDFS into .cache/hdfs (214 MB to download), for some of the tests marked heavy, which are skipped without it,
# `sh tests/prepare.sh frameworks` installs tests/frameworks.txt and creates .cache/frameworks from tests/frameworks.lock (each 0.5 GB to download), for the tests marked heavy,
# `sh tests/prepare.sh science` creates .cache/science from tests/science.lock, in which hibali can be imported, for the tests marked heavy,
# `sh tests/prepare.sh docs` creates .cache/docs from tests/docs.lock, for `make docs` and the tests marked heavy.
set -eu
cd "$(dirname "$0")/.."
quietly="-qq --disable-pip-version-check --no-compile" # Python compiles a module when it is first imported

prepare_environment() {
    ready=.venv/.ready
    if [ "$ready" -nt requirements.lock ] && [ "$ready" -nt pyproject.toml ] && .venv/bin/python -c ''; then
        return
    fi
    python=${PYTHON:-python3}
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "$python is missing or older than 3.11. On Debian 12, run as root: apt-get install python3" >&2
        exit 1
    fi
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        echo "$python cannot create virtual environments. On Debian, run as root: apt-get install python3-venv" >&2
        exit 1
    fi
    echo "Creating .venv from requirements.lock ..." >&2
    "$python" -m venv --clear .venv
    install_lock .venv tests/pip.lock || echo "pip was not upgraded, so the next step takes longer" >&2
    install_lock .venv requirements.lock
    # build hibali with the locked build backend
    # shellcheck disable=SC2086 - split into arguments
    .venv/bin/python -m pip install $quietly --no-deps --no-index --no-build-isolation --editable .
    touch "$ready"
}

# Install the lock $2, which lists every package with its hashes, into the environment $1.
install_lock() {
    # shellcheck disable=SC2086 - split into arguments
    "$1/bin/python" -m pip install $quietly --no-deps --require-hashes --requirement "$2"
}

# prepare_own NAME TITLE: create the virtual environment .cache/NAME from tests/NAME.lock.
prepare_own() {
    ready=.cache/$1/.ready
    [ ! "$ready" -nt "tests/$1.lock" ] || return 0
    echo "Creating .cache/$1 from tests/$1.lock ..." >&2
    "${PYTHON:-python3}" -m venv --clear ".cache/$1" &&
        install_lock ".cache/$1" "tests/$1.lock" &&
        touch "$ready" ||
        echo "$2 could not be installed; the tests that need it are skipped and listed" >&2
}

# Let the environment .cache/$1 import this clone's hibali, and what hibali needs where the environment has not its own: of a package that is in
# both, that environment's is imported, as where all of them were installed together. Every process in it reads this file: workers of Dask, too.
add_hibali() {
    for folder in ".cache/$1"/lib/python3*/site-packages; do
        [ -d "$folder" ] || continue
        printf '%s\n' "$PWD" "$PWD/.venv/lib/$(basename "$(dirname "$folder")")/site-packages" >"$folder/hibali.pth"
    done
}

# Print the Debian packages of the list $1 that are not installed.
missing_packages() {
    sed -n '/^[a-z]/p' "$1" | while read -r package; do
        status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null) || status=absent
        [ "$status" = installed ] || printf '%s ' "$package"
    done
}

# Install the Debian packages of the list $1.
prepare_packages() {
    command -v dpkg-query >/dev/null || return 0
    missing=$(missing_packages "$1")
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" != 0 ]; then
        echo "Not root: the tests that need these Debian packages are skipped and listed: $missing" >&2
        return 0
    fi
    echo "Installing Debian packages: $missing" >&2
    export DEBIAN_FRONTEND=noninteractive
    # the tests start their own servers: keep Debian's services from starting
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        trap 'rm -f "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
    fi
    # shellcheck disable=SC2086 - split into arguments
    apt-get update -qq >&2 &&
        apt-get install -y -qq --no-install-recommends --no-remove $missing >&2 </dev/null ||
        echo "apt-get did not install all of: $missing" >&2
}

# The package conflicts with Grid Engine's client, whose commands have the same names.
prepare_torque() {
    [ ! -x .cache/torque/usr/bin/qsub ] && command -v apt-get >/dev/null || return 0
    folder=$(mktemp -d)
    mkdir -p .cache/torque
    (cd "$folder" && apt-get download -qq slurm-wlm-torque >/dev/null 2>&1) &&
        dpkg -x "$folder"/slurm-wlm-torque_*.deb .cache/torque ||
        echo "slurm-wlm-torque could not be unpacked; the tests that need it are skipped and listed" >&2
    rm -rf "$folder"
}

# HDFS from PySpark's archive (tests/hdfs.txt), and the libraries of Debian that it needs besides and with Java 17.
prepare_hdfs() {
    ready=.cache/hdfs/.ready
    [ ! "$ready" -nt tests/hdfs.txt ] && command -v apt-get >/dev/null || return 0
    folder=$(mktemp -d)
    rm -rf .cache/hdfs
    mkdir -p .cache/hdfs/jars
    echo 'pypandoc==1.4' >"$folder/build.txt" # PySpark's setup.py calls a function that later versions lack
    # shellcheck disable=SC2086 - split into arguments
    PIP_CONSTRAINT="$folder/build.txt" "${PYTHON:-python3}" -m pip download -qq --disable-pip-version-check --no-deps --require-hashes --dest "$folder" --requirement tests/hdfs.txt &&
        tar -xzf "$folder"/pyspark-*.tar.gz -C "$folder" --wildcards --no-anchored '*/deps/jars/*' &&
        find "$folder" -name '*.jar' | grep -E '/(hadoop-(annotations|auth|common|hdfs)|commons-|jetty|htrace|netty|guava|protobuf|log4j|slf4j|javax.servlet-api|jackson-(core|mapper)-asl|leveldb|xmlenc|xerces|zookeeper|curator|avro-1|jsr305|httpc|jaxb-api|activation)' | xargs cp -t .cache/hdfs/jars &&
        (cd "$folder" && apt-get download -qq libjersey1-core-java libjersey1-server-java libjersey1-servlet-java libjersey1-json-java libjsr311-api-java libasm-java libjaxb-java libistack-commons-java libtxw2-java libstax-ex-java libfastinfoset-java >/dev/null 2>&1) &&
        for package in "$folder"/*.deb; do dpkg -x "$package" "$folder/debian"; done &&
        (cd "$folder/debian/usr/share/java" && cp -L jersey1-*.jar jsr311-api.jar asm.jar jaxb-core.jar jaxb-impl.jar jaxb-runtime.jar istack-commons-runtime.jar txw2.jar stax-ex.jar FastInfoset.jar "$OLDPWD/.cache/hdfs/jars") &&
        touch "$ready" ||
        echo "HDFS could not be unpacked; the tests that need it are skipped and listed" >&2
    rm -rf "$folder"
}

# Azurite, which runs on Node.js, from its lock with the hashes of all packages.
prepare_azurite() {
    ready=.cache/azurite/.ready
    [ ! "$ready" -nt tests/azurite/package-lock.json ] || return 0
    rm -rf .cache/azurite
    mkdir -p .cache/azurite
    cp tests/azurite/package.json tests/azurite/package-lock.json .cache/azurite/
    npm ci --prefix .cache/azurite --ignore-scripts --no-audit --no-fund --silent >/dev/null 2>&1 &&
        touch "$ready" ||
        echo "Azurite could not be installed; the tests that need it are skipped and listed" >&2
}

for part in "$@"; do
    case $part in
    environment) prepare_environment ;;
    packages) prepare_packages tests/packages.txt ;;
    swift) prepare_own swift "OpenStack Swift" ;;
    crates) prepare_own crates "roc-validator" ;;
    axe) prepare_own axe "axe-core" ;;
    torque) prepare_torque ;;
    snakemake) prepare_own snakemake "Snakemake" ;;
    parsl) prepare_own parsl "Parsl" ;;
    dask) prepare_own dask "Dask" ;;
    radical) prepare_own radical RADICAL-Pilot ;;
    frameworks) prepare_packages tests/frameworks.txt && prepare_own frameworks "Keras, scikit-learn and PySpark" ;;
    bids) prepare_own bids "pybids and the BIDS validator" ;;
    science) prepare_own science "pandas, zarr and Jupyter" && add_hibali science ;;
    globus) prepare_own globus "globus-cli" ;;
    rest) prepare_own rest "pyunicore, pyfirecrest and clients of IRI" ;;
    cwl) prepare_own cwl cwltool ;;
    psij) prepare_own psij psij-python ;;
    nipoppy) prepare_own nipoppy nipoppy ;;
    podman-hpc) prepare_own podman-hpc podman-hpc ;;
    delivery) prepare_own delivery "pipx and uv" ;;
    fsspec) prepare_own fsspec "gcsfs and adlfs" && prepare_azurite ;;
    hdfs) prepare_hdfs ;;
    docs) prepare_own docs "Sphinx" ;;
    *) echo "usage: sh tests/prepare.sh [environment] [packages] [swift] [crates] [axe] [torque] [snakemake] [parsl] [dask] [radical] [frameworks] [science] [bids] [globus] [rest] [cwl] [psij] [nipoppy] [podman-hpc] [delivery] [fsspec] [hdfs] [docs]" >&2 && exit 2 ;;
    esac
done
