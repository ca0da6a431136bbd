#!/usr/bin/env python3
"""Divides the files of an input between tasks, and selects those held out for validation (k-fold). Pure.

Files are sorted by name, byte by byte, and numbered from 0. Fold `fold` of `folds` (from 1) is held out: the files whose number
modulo `folds` is fold - 1. The others are numbered again, and part `part` of `parts` (from 0) has those whose number modulo
`parts` is `part`. So each file is in exactly one fold or part, sizes differ by at most one file, and the same names give the
same division on every machine.

Mounted sources are not copied: a task sees links to its files, and the whole beside them, to which the links lead.

Also a program of docker/rclone. `parts PART PARTS FOLD FOLDS FOLDER` reads sorted names, one per line, and writes those for
training and for validation into the files train and validation of FOLDER. It keeps none in memory: there may be millions, and
its container is small. `parts --links FIRST INDEX PARTS FOLD FOLDS WHOLE INTO` makes links in the folder INTO to the files below
WHOLE of part FIRST + INDEX, or none if FIRST is below 0.
"""

import os
import shutil
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TypeVar

    Name = TypeVar("Name")

# The target folder of links.
WHOLE = "/elearn/whole"
# Folders below the input if there are folds.
TRAIN, VALIDATION = "train", "validation"


def chosen(ordered: "Iterable[Name]", part: int, parts: int, fold: int, folds: int) -> "Iterator[tuple[Name, str]]":
    """Yields the names that the task gets, each with TRAIN or VALIDATION; names must be sorted. `parts` 0: all are for training.
    `part` below 0: none is. `folds` 0: nothing is held out."""
    others = 0
    for number, name in enumerate(ordered):
        if folds and number % folds == fold - 1:
            yield name, VALIDATION
            continue
        if not parts or (part >= 0 and others % parts == part):
            yield name, TRAIN
        others += 1


def shown(names: "Iterable[str]", part: int, parts: int, fold: int, folds: int) -> "Iterator[tuple[str, str]]":
    """Yields the task's files in order, each with its path below the input. Keeps names as bytes, because memory is small."""
    for name, which in chosen(sorted(map(os.fsencode, names)), part, parts, fold, folds):
        text = os.fsdecode(name)
        yield text, f"{which}/{text}" if folds else text


def link(whole: str, into: str, found: "Iterable[tuple[str, str]]") -> None:
    """Makes symbolic links in `into` to files of `whole`. `found`: file and link path."""
    for name, appears in found:
        place = os.path.join(into, appears)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.symlink(os.path.join(whole, name), place)


def files_below(top: str) -> "Iterator[str]":
    """Yields the paths of all regular files. Follows no links; skips folders that may not be opened, which file systems have for
    themselves."""
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
    # Clean up after an earlier try.
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
