"""Write or read many small files at one place: `python filesystem_program.py ACTION PLACE COUNT AT_A_TIME`.

The place is a URL of fsspec or a local path. Run it with the environment .cache/science.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import fsspec

CHUNK = 1280  # numbers of 8 bytes: 10 KiB, which do not compress


def _zarr(at_a_time: int) -> Any:
    import zarr

    zarr.config.set({"async.concurrency": at_a_time, "threading.max_workers": at_a_time})
    return zarr


def _values(count: int) -> Any:
    import numpy as np  # not in the environment of the benchmarks

    return np.random.default_rng(1).random(count * CHUNK)


def zarr_write(place: str, count: int, at_a_time: int) -> None:
    """Write an array in chunks."""
    array = _zarr(at_a_time).create_array(
        place, shape=(count * CHUNK,), chunks=(CHUNK,), dtype="f8", compressors=None
    )
    array[:] = _values(count)


def zarr_read(place: str, count: int, at_a_time: int) -> None:
    """Read that array, and compare it."""
    assert (_zarr(at_a_time).open_array(place, mode="r")[:] == _values(count)).all()


def pipe(place: str, count: int, _: int) -> None:
    """Write files together, without zarr."""
    filesystem, path = fsspec.url_to_fs(place)
    content = _values(count).tobytes()
    size = 8 * CHUNK
    filesystem.pipe(
        {f"{path}/{number}": content[number * size : (number + 1) * size] for number in range(count)}
    )


def overwrite(place: str, count: int, _: int) -> None:
    """Write one file again and again."""
    content = _values(1).tobytes()
    for _number in range(count):
        with fsspec.open(f"{place}/file", "wb", auto_mkdir=True) as file:
            file.write(content)


_ACTIONS: dict[str, Callable[[str, int, int], None]] = {
    each.__name__: each for each in (zarr_write, zarr_read, pipe, overwrite)
}

if __name__ == "__main__":
    _ACTIONS[sys.argv[1]](sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
