"""Programs for the environment .cache/science: libraries that read and write at `hibali://there` through fsspec.

`python -m tests.support.science NAME` calls one of them. A wrong result is an AssertionError.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = "hibali://there/data"
SIZE = 400_000
RANGES = 200


def pandas() -> None:
    """Write and read CSV, also compressed, and append to it."""
    import pandas as pd

    table = pd.DataFrame({"subject": ["a", "b"], "volume": [1.5, 2.5]})
    for name in ("table.csv", "table.csv.gz"):
        table.to_csv(f"{FOLDER}/{name}", index=False)
        assert pd.read_csv(f"{FOLDER}/{name}").equals(table)
    table.to_csv(f"{FOLDER}/table.csv", mode="a", header=False, index=False)
    assert list(pd.read_csv(f"{FOLDER}/table.csv")["subject"]) == ["a", "b", "a", "b"]
    try:
        pd.read_csv(f"{FOLDER}/missing.csv")
    except FileNotFoundError:
        return
    raise AssertionError("a missing file was read")


def parquet() -> None:
    """Write and read Parquet: a file by pandas, and a partitioned dataset by pyarrow."""
    import fsspec
    import pandas as pd
    from pyarrow import dataset

    table = pd.DataFrame({"number": range(10_000), "group": [each % 3 for each in range(10_000)]})
    table.to_parquet(f"{FOLDER}/table.parquet", row_group_size=1000)
    assert pd.read_parquet(f"{FOLDER}/table.parquet").equals(table)
    few = pd.read_parquet(f"{FOLDER}/table.parquet", columns=["number"], filters=[("number", "<", 5)])
    assert list(few["number"]) == [0, 1, 2, 3, 4]
    table.to_parquet(f"{FOLDER}/parts", partition_cols=["group"])
    filesystem = fsspec.filesystem("hibali")
    found = dataset.dataset("there/data/parts", filesystem=filesystem, partitioning="hive")
    assert found.to_table(filter=dataset.field("group") == 1).num_rows == 3333
    assert pd.read_parquet(f"{FOLDER}/parts")["number"].sum() == table["number"].sum()


def zarr() -> None:
    """Create a group with a compressed array, write parts of it, and read them from another store."""
    import numpy as np
    import zarr as library

    content = np.arange(64 * 64, dtype="int32").reshape(64, 64)
    group = library.open_group(f"{FOLDER}/group.zarr", mode="w")
    array = group.create_array("volume", shape=content.shape, chunks=(16, 16), dtype=content.dtype)
    array.attrs["unit"] = "mm"
    array[:, :] = content
    array[10:20, 10:20] = 7
    content[10:20, 10:20] = 7
    for options in (None, {"pin": True}):
        again = library.open_group(f"{FOLDER}/group.zarr", mode="r", storage_options=options)
        assert list(again) == ["volume"]
        assert again["volume"].attrs["unit"] == "mm"
        assert (again["volume"][:, :] == content).all()
        assert (again["volume"][5:25, ::3] == content[5:25, ::3]).all()


def nibabel() -> None:
    """Write and read NIfTI images, also compressed, from streams and bytes."""
    import fsspec
    import nibabel as library
    import numpy as np

    content = np.arange(1000, dtype="int16").reshape(10, 10, 10)
    image = library.Nifti1Image(content, np.eye(4))
    for name in ("scan.nii", "scan.nii.gz"):
        with fsspec.open(f"{FOLDER}/{name}", "wb", compression="infer") as file:
            image.to_stream(file)
        with fsspec.open(f"{FOLDER}/{name}", "rb", compression="infer") as file:
            assert (library.Nifti1Image.from_stream(file).get_fdata() == content).all()
    filesystem = fsspec.filesystem("hibali")
    loaded = library.Nifti1Image.from_bytes(filesystem.cat_file("there/data/scan.nii"))
    assert (loaded.get_fdata() == content).all()
    with filesystem.open("there/data/scan.nii") as file:
        sliced = library.Nifti1Image.from_stream(file).dataobj[..., 3]  # reads this range only
    assert (sliced == content[..., 3]).all()


def dask_tables() -> None:
    """Write and read tables in parts with Dask."""
    import dask.dataframe as dd
    import pandas as pd

    table = pd.DataFrame({"number": range(1000), "text": [f"row {each}" for each in range(1000)]})
    frame = dd.from_pandas(table, npartitions=4)
    frame.to_csv(f"{FOLDER}/csv/part-*.csv", index=False)
    assert dd.read_csv(f"{FOLDER}/csv/part-*.csv", blocksize=1000)["number"].sum().compute() == 499_500
    frame.to_parquet(f"{FOLDER}/parquet")
    assert dd.read_parquet(f"{FOLDER}/parquet")["number"].max().compute() == 999


def one_login() -> None:
    """Read with eight threads at the same time, which all have begun before one ends."""
    import fsspec

    filesystem = fsspec.filesystem("hibali")
    together = threading.Barrier(8)

    def read(number: int) -> bytes:
        together.wait()
        return bytes(filesystem.cat_file("there/data/large", number * 1000, number * 1000 + 1000))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, range(8))) == [bytes([65]) * 1000] * 8


def ranges_in_threads() -> None:
    """Read 200 ranges with Dask's threads while the file is replaced."""
    import dask

    with dask.config.set(scheduler="threads", num_workers=8):
        _read_while_replaced()


def ranges_in_processes() -> None:
    """Read 200 ranges with Dask's processes while the file is replaced."""
    from distributed import Client

    # Two sessions for each of four threads, while a connection is replaced, and two for this process: a server opens at most
    # ten over one login, and hibali logs in again where it needs more.
    with Client(n_workers=2, threads_per_worker=2, dashboard_address=None):
        _read_while_replaced()


def notebook() -> None:
    """Execute the code of docs/notebooks.md as a notebook in this folder, and write it with its outputs."""
    import nbformat
    from nbclient import NotebookClient

    page = (Path(__file__).parents[2] / "docs/notebooks.md").read_text()
    with socket.create_server(("127.0.0.1", 0)) as free:
        page = page.replace("8786", str(free.getsockname()[1]))  # Dask's usual port may be in use here
    cells = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
    NotebookClient(made, timeout=300, kernel_name="python3").execute()
    nbformat.write(made, "executed.ipynb")


def progress() -> None:
    """Push in a kernel inside `hibali.progress`: one output is updated, and empty at the end, also after an error."""
    from jupyter_client.manager import start_new_kernel

    Path("scans").mkdir()
    Path("scans/a").write_bytes(b"1" * 1000)
    kernel, client = start_new_kernel(kernel_name="python3")
    for source, ends in (("scans", "ok"), ("missing", "error")):
        code = (
            f"import hibali\nwith hibali.progress('<b>'):\n    hibali.push({source!r}, 'there:data/pushed')"
        )
        messages: list[Any] = []
        reply = client.execute_interactive(code, output_hook=messages.append, timeout=120)
        assert reply["content"]["status"] == ends, reply
        shown = [each["content"] for each in messages if each["msg_type"].endswith("display_data")]
        assert len({each["transient"]["display_id"] for each in shown}) == 1
        texts = [each["data"].get("text/html", "") for each in shown]
        assert texts[-1] == "", texts
        assert any("<progress" in text and "&lt;b&gt;" in text for text in texts) is (ends == "ok"), texts
    client.stop_channels()
    kernel.shutdown_kernel()


def _read_while_replaced() -> None:
    file = Path(os.environ["REPLACED_FILE"])
    assert _read() == {bytes([65])}
    changed = _parts()
    _replace(file, 66)
    assert _whole(changed) is None, "the version was found when the parts were made"
    outcomes = [_read()]
    with _replacing(file):
        outcomes += [_read() for _ in range(5)]
    assert all(each is None or len(each) == 1 for each in outcomes), outcomes
    assert outcomes[0] == {bytes([66])}
    assert _read() is not None, "nothing replaces the file now"


def _read() -> set[bytes] | None:
    return _whole(_parts())


def _parts() -> list[Any]:
    """Return tasks that read all ranges of the version that exists now."""
    import fsspec
    from dask.bytes import read_bytes

    fsspec.get_filesystem_class("hibali").clear_instance_cache()
    _, (parts,) = read_bytes(f"{FOLDER}/large", blocksize=SIZE // RANGES, sample=False, pin=True)
    assert len(parts) == RANGES
    return list(parts)


def _whole(parts: list[Any]) -> set[bytes] | None:
    """Return the different bytes of all ranges; None if the file was replaced meanwhile."""
    import dask

    try:
        contents = dask.compute(*parts)
    except OSError as problem:
        if getattr(problem, "code", "") != "changed":
            raise
        return None
    assert sum(map(len, contents)) == SIZE
    return {bytes([each]) for content in contents for each in set(content)}


def _replace(file: Path, version: int) -> None:
    new = file.with_name(f"new-{version}")
    new.write_bytes(bytes([version]) * SIZE)
    new.replace(file)


@contextmanager
def _replacing(file: Path) -> Iterator[None]:
    """Replace the file all the time, each version with another byte."""
    stop = threading.Event()

    def replace() -> None:
        version = 0
        while not stop.wait(0.02):  # the clock of a filesystem has a resolution of several milliseconds
            version = version % 250 + 1
            _replace(file, version)

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


_PROGRAMS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        pandas,
        parquet,
        zarr,
        nibabel,
        dask_tables,
        one_login,
        ranges_in_threads,
        ranges_in_processes,
        notebook,
        progress,
    )
}

if __name__ == "__main__":
    _PROGRAMS[sys.argv[1]]()
