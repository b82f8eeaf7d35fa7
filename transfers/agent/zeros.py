"""Pieces of large files without their stretches of zeros, which a line does not have to carry."""

from typing import Any, Callable, Dict, List, Tuple

from transfers.agent import frames

_BLOCK = 64 * 1024  # stretches are whole blocks of a piece, so that few have to be told
_ZEROS = bytes(_BLOCK)


class ZerosError(ValueError):
    """What is said of the zeros of a piece does not add up."""


def leave_out(header: Dict[str, Any], content: frames.Body) -> Tuple[Dict[str, Any], frames.Body]:
    """The message of a piece without the blocks of it that are zeros: `runs` tells where what it holds belongs."""
    view = memoryview(content)
    runs = _runs(view)
    if not view or runs == [[0, len(view)]]:  # where a piece could not be read there is none
        return header, content
    return {**header, "runs": runs}, b"".join([view[start:stop] for start, stop in runs])


def _runs(view: memoryview) -> List[List[int]]:
    """From where to where there is anything but whole blocks of zeros, in order."""
    runs: List[List[int]] = []
    for start in range(0, len(view), _BLOCK):
        stop = min(len(view), start + _BLOCK)
        if _is_zero(view, start, stop):
            continue
        if runs and runs[-1][1] == start:
            runs[-1][1] = stop
        else:
            runs.append([start, stop])
    return runs


def _is_zero(view: memoryview, start: int, stop: int) -> bool:
    # most bytes of most files are no zeros, which a look at three of them tells
    if view[start] or view[stop - 1] or view[(start + stop) // 2]:
        return False
    return bytes(view[start:stop]) == _ZEROS[: stop - start]


def put_in(
    header: Dict[str, Any], body: frames.Body, length: int, take: Callable[[int], frames.Room]
) -> frames.Body:
    """The whole piece of `length` bytes, in room from `take`. Raises `ZerosError` where it cannot be that.

    Nothing that the other end says makes it take more room than the piece that was agreed upon.
    """
    if "runs" not in header:
        return body
    runs = header["runs"]
    if not 0 < length <= frames.MAXIMUM_BODY or not isinstance(runs, list):
        raise ZerosError("zeros where none can be")
    _check(runs, len(body), length)
    room = take(length)
    view, rest, done = memoryview(room), memoryview(body), 0
    for start, stop in runs:
        view[done:start] = bytes(start - done)
        view[start:stop] = rest[: stop - start]
        rest, done = rest[stop - start :], stop
    view[done:] = bytes(length - done)
    return room


def _check(runs: List[Any], held: int, length: int) -> None:
    done = 0
    for run in runs:
        if not (isinstance(run, list) and len(run) == 2 and all(type(edge) is int for edge in run)):
            raise ZerosError("stretches of another shape than agreed")
        start, stop = run
        if not done <= start < stop <= length:
            raise ZerosError("stretches that lie outside of the piece, or over each other")
        done, held = stop, held - (stop - start)
    if held:
        raise ZerosError("stretches that do not add up to the bytes that came")
