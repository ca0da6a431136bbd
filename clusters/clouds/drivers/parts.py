#!/usr/bin/env python3
"""Which files of an input a task gets when each gets a part of them, and which are held out for validation (k-fold). Pure.

All files are put in the order of their names, byte by byte, and counted from 0. Of `folds` folds the one called `fold` (from
1) is held out: the files whose number leaves fold - 1 when it is divided by `folds`. The others are counted anew, and of
`parts` parts the one called `part` (from 0) has those whose number leaves `part` when it is divided by `parts`. So each file
is in one fold and in one part, they differ by one file at most, and whoever has the same names gets the same files, on
whatever machine.

A program of docker/rclone, too: `parts PART PARTS FOLD FOLDS FOLDER` reads names, one a line, and writes those for training
and for validation into the files train and validation of FOLDER.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# Where they are below the input, with folds.
TRAIN, VALIDATION = "train", "validation"


def divided(names: "Iterable[str]", part: int, parts: int, fold: int, folds: int) -> tuple[list[str], list[str]]:
    """The names for training and those held out, in order. With `parts` 0 all are for training, with a `part` below 0 none; with
    `folds` 0 nothing is held out."""
    ordered = sorted(names, key=os.fsencode)
    held = [name for number, name in enumerate(ordered) if folds and number % folds == fold - 1]
    rest = [name for number, name in enumerate(ordered) if not folds or number % folds != fold - 1]
    if parts:
        rest = rest[part::parts] if part >= 0 else []
    return rest, held


def main(*argv: str) -> None:
    part, parts, fold, folds = map(int, argv[:4])
    folder = argv[4]
    names = [os.fsdecode(line) for line in sys.stdin.buffer.read().split(b"\n") if line]
    found = dict(zip((TRAIN, VALIDATION), divided(names, part, parts, fold, folds), strict=True))
    for which, chosen in found.items():
        with open(os.path.join(folder, which), "wb") as file:
            file.writelines(os.fsencode(name) + b"\n" for name in chosen)


if __name__ == "__main__":
    main(*sys.argv[1:])
