"""What a run's event files have beside scalars: its histograms, and its images, whose bytes are read when somebody looks."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from clusters.runs.models import Run
from clusters.scalars.events import MAX_RECORD, Scalars, Shown, histograms_in, images_in, is_event_file
from clusters.scalars.media import MAX_TAGS, MAX_TAGS_PER_FILE, Placed, image_of
from clusters.scalars.reading import output_of, read_stored
from datastores.actions import open_store
from datastores.drivers.base import NotThere
from datastores.specs import relative_path
from datastores.tfrecord import HEAD, TAIL, frames


class Media(NamedTuple):
    histograms: list[Shown]
    images: list[Shown]
    # What is not shown, and why.
    notes: list[str]
    # False if the next call has more to read.
    is_complete: bool


def media_of(run: Run) -> Media:
    """Its histograms and images, from the same files. Raises DriverError."""
    scalars, progress = read_stored(run) if run.spec["output"] else (Scalars((), 0), {})
    notes, left_out = list(scalars.notes), sum(each.media.left_out for each in progress.values())
    if left_out:
        notes.append(
            f"{left_out:,} image{'s are' if left_out > 1 else ' is'} not shown: larger than {MAX_RECORD >> 20} MiB, or neither "
            "PNG, JPEG, GIF nor WebP."
        )
    if any(each.media.is_crowded for each in progress.values()):
        notes.append(
            f"The first {MAX_TAGS_PER_FILE} histograms and images of a file are shown, and {MAX_TAGS} of a run."
        )
    return Media(histograms_in(progress), images_in(progress), notes, scalars.is_complete)


def images_of(run: Run, wanted: Iterable[Placed], most: int) -> list[bytes]:
    """The bytes of images, none of those that are not there and those that would make it more than `most` in all. Raises
    DriverError."""
    if not (chosen := list(wanted)):
        return []
    store, folder = output_of(run)
    driver, found = open_store(store), list[bytes]()
    for each in chosen:
        image, data = each.image, b""
        if _is_its(each.path, folder) and image.size - HEAD - TAIL <= min(MAX_RECORD, most):
            # A file may have been removed since.
            with suppress(NotThere):
                data = driver.read_range(each.path, image.offset, image.size)
        records, _, _ = frames(data)
        found.append(image_of(data[slice(*records[0])], image.value, image.which) if records else b"")
        most -= len(found[-1])
    return found


def _is_its(path: str, folder: str) -> bool:
    """Whether it is an event file in the output folder of the run."""
    try:
        clean = relative_path(path)
    except ValueError:
        return False
    return path == clean and is_event_file(path) and (not folder or path.startswith(f"{folder}/"))
