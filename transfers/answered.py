"""Which items of a plan are answered for, a bit each: a lost line must not carry a million of them again."""

from __future__ import annotations


class Answered:
    """A set of the small whole numbers that plans give to their items."""

    def __init__(self) -> None:
        self._bits = bytearray()
        self._count = 0

    def add(self, number: int) -> None:
        """Take it in; at most once each."""
        place, bit = divmod(number, 8)
        if place >= len(self._bits):
            self._bits.extend(bytes(place + 1 - len(self._bits)))
        self._bits[place] |= 1 << bit
        self._count += 1

    def clear(self) -> None:
        """Another plan, in which none is answered."""
        self._bits.clear()
        self._count = 0

    def __contains__(self, number: int) -> bool:
        place, bit = divmod(number, 8)
        return place < len(self._bits) and bool(self._bits[place] >> bit & 1)

    def __len__(self) -> int:
        return self._count
