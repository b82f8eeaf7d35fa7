"""What may have been meant by a word that is not known."""

from __future__ import annotations

from collections.abc import Iterable

_NEAR = 0.6  # of 1: one letter of three may be another one
_ALIKE = 0.65  # of 1: so many letters in common, in their order
_LONGEST = 100


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The known word that is most like it, or the only one that begins so; None where none is."""
    from rapidfuzz import fuzz, process
    from rapidfuzz.distance import OSA

    known = sorted(set(words) - {word})
    begun = [each for each in known if word and each.startswith(word)]
    if len(begun) == 1:
        return begun[0]
    for scorer, least in ((OSA.normalized_similarity, _NEAR), (fuzz.ratio, 100 * _ALIKE)):
        found = process.extractOne(
            word[:_LONGEST], known, scorer=scorer, processor=str.lower, score_cutoff=least
        )
        if found is not None:
            return found[0]
    return None


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """The question with a blank behind it; "" where nothing is near."""
    found = nearest(word, words)
    return f"Did you mean {found}? " if found else ""
