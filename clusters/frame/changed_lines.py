"""The lines in which files differ, with a little context. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

# Pairs of lines compared for one page. The worst case takes seconds, and grows with the cube.
MAX_PAIRS = 2_000_000


def changed_files(
    before: Mapping[str, str], after: Mapping[str, str], *, pairs: int = MAX_PAIRS
) -> Iterator[tuple[str, list[tuple[str, str]] | None]]:
    """Each file that differs, with its lines as (sign, text); None if it is too long to be compared here, none if only
    its line ends differ. `pairs`: how many pairs of lines are compared at most."""
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            one, other = before.get(name, "").splitlines(), after.get(name, "").splitlines()
            lines, pairs = _changed_lines(one, other, pairs)
            yield name, lines


def _changed_lines(one: list[str], other: list[str], pairs: int) -> tuple[list[tuple[str, str]] | None, int]:
    """The differing lines as (sign, text) with two lines of context, and how many pairs of lines may still be compared; None if
    there are too many. Equal lines at the beginning and the end cost nothing."""
    start = _same(one, other)
    end = _same(one[start:][::-1], other[start:][::-1])
    pairs_of = (len(one) - start - end) * (len(other) - start - end)
    if pairs_of > pairs:
        return None, pairs
    around = 2
    first, second = (each[max(0, start - around) : len(each) - max(0, end - around)] for each in (one, other))
    lines = list(difflib.unified_diff(first, second, lineterm="", n=around))[2:]
    # Line numbers are dropped: the lines before are not included, so they would be wrong.
    shown = [("", "…") if line[:2] == "@@" else (line[:1].strip(), line[1:]) for line in lines]
    return shown[1:] if start <= around else shown, pairs - pairs_of


def _same(one: list[str], other: list[str]) -> int:
    """Number of equal lines at the beginning of both."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
