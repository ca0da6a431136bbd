#!/usr/bin/env python3
"""Which files of an input a task gets when each gets a part of them, and which are held out for validation (k-fold). Pure.

All files are put in the order of their names, byte by byte, and counted from 0. Of `folds` folds the one called `fold` (from
1) is held out: the files whose number leaves fold - 1 when it is divided by `folds`. The others are counted anew, and of
`parts` parts the one called `part` (from 0) has those whose number leaves `part` when it is divided by `parts`. So each file
is in one fold and in one part, they differ by one file at most, and whoever has the same names gets the same files, on
whatever machine.

What is mounted is not copied for that: a task sees links to its files, and beside them the whole to which they lead.

A program of docker/rclone, too. `parts PART PARTS FOLD FOLDS FOLDER` reads names that are in order, one a line, and writes those
for training and for validation into the files train and validation of FOLDER. It keeps none of them: there may be millions, and
its container is small. `parts --links FIRST INDEX PARTS FOLD FOLDS WHOLE INTO` makes links in the folder INTO to the files below
WHOLE that part FIRST + INDEX has, or none where FIRST is below 0.
"""

import os
import shutil
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TypeVar

    Name = TypeVar("Name")

# Where links lead.
WHOLE = "/elearn/whole"
# Where they are below the input, with folds.
TRAIN, VALIDATION = "train", "validation"


def chosen(ordered: "Iterable[Name]", part: int, parts: int, fold: int, folds: int) -> "Iterator[tuple[Name, str]]":
    """Of names that are in order each that the task gets, with TRAIN or VALIDATION. With `parts` 0 all are for training, with a
    `part` below 0 none; with `folds` 0 nothing is held out."""
    others = 0
    for number, name in enumerate(ordered):
        if folds and number % folds == fold - 1:
            yield name, VALIDATION
            continue
        if not parts or (part >= 0 and others % parts == part):
            yield name, TRAIN
        others += 1


def shown(names: "Iterable[str]", part: int, parts: int, fold: int, folds: int) -> "Iterator[tuple[str, str]]":
    """Each file that the task gets, in order, with where it is below the input. Only the names are kept, as bytes: there may be a
    million, and the container is small."""
    for name, which in chosen(sorted(map(os.fsencode, names)), part, parts, fold, folds):
        text = os.fsdecode(name)
        yield text, f"{which}/{text}" if folds else text


def link(whole: str, into: str, found: "Iterable[tuple[str, str]]") -> None:
    """Makes symbolic links to files of `whole` in the folder `into`; `found` says where each appears."""
    for name, appears in found:
        place = os.path.join(into, appears)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.symlink(os.path.join(whole, name), place)


def files_below(top: str) -> "Iterator[str]":
    """The paths of all regular files. Follows no links, and leaves out folders that we may not open, as a file system has them
    for itself."""
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(os.path.join(top, folder)) as entries:
                for entry in entries:
                    path = os.path.join(folder, entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(path)
                    elif entry.is_file(follow_symlinks=False):
                        yield path
        except PermissionError:
            if not folder:
                raise


def make_links(*argv: str) -> None:
    first, index, *rest = map(int, argv[:5])
    whole, into = argv[5:]
    # Of an earlier try.
    for entry in os.scandir(into):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
    link(whole, into, shown(files_below(whole), first + index if first >= 0 else -1, *rest))


def main(*argv: str) -> None:
    if argv[0] == "--links":
        make_links(*argv[1:])
        return
    part, parts, fold, folds = map(int, argv[:4])
    folder = argv[4]
    with open(os.path.join(folder, TRAIN), "wb") as train, open(os.path.join(folder, VALIDATION), "wb") as held:
        files = {TRAIN: train, VALIDATION: held}
        for line, which in chosen(sys.stdin.buffer, part, parts, fold, folds):
            files[which].write(line)


if __name__ == "__main__":
    main(*sys.argv[1:])
