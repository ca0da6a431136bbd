"""What a run wrote beside scalars: the histograms and images of its event files, and the images and tables among its other files.
The bytes of images are read when somebody looks."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from clusters.catalog.folders import output_folder
from clusters.runs.models import Run
from clusters.scalars.events import MAX_RECORD, Scalars, Shown, histograms_in, images_in, is_event_file
from clusters.scalars.files import images_among, is_image, tables_among
from clusters.scalars.media import MAX_TAGS, MAX_TAGS_PER_FILE, Placed, image_of, image_type
from clusters.scalars.reading import Stored, output_of, read_stored
from clusters.tracking.reading import tables_of
from datastores.actions import open_store
from datastores.drivers.base import NotThere
from datastores.specs import relative_path
from datastores.tfrecord import HEAD, TAIL, frames


class Media(NamedTuple):
    histograms: list[Shown]
    images: list[Shown]
    tables: list[Shown]
    # What is not shown, and why.
    notes: list[str]
    # False if the next call has more to read.
    is_complete: bool


def media_of(run: Run) -> Media:
    """Raises DriverError."""
    scalars, progress, files, histograms, captions = (
        read_stored(run) if run.spec["output"] else Stored(Scalars((), 0), {})
    )
    images, too_large = images_among(files, captions)
    notes, left_out = list(scalars.notes), too_large + sum(each.media.left_out for each in progress.values())
    if left_out:
        notes.append(
            f"{left_out:,} image{'s are' if left_out > 1 else ' is'} not shown: larger than {MAX_RECORD >> 20} MiB, or neither "
            "PNG, JPEG, GIF nor WebP."
        )
    if any(each.media.is_crowded for each in progress.values()):
        notes.append(
            f"The first {MAX_TAGS_PER_FILE} histograms and images of a file are shown, and {MAX_TAGS} of a run."
        )
    tables = tables_among(files, tables_of(run)) if files else []
    return Media(
        [*histograms_in(progress), *histograms], [*images_in(progress), *images], tables, notes, scalars.is_complete
    )


def in_output(run: Run, lines: Iterable[Shown]) -> list[Shown]:
    """The same with folders below the run's own one, which are alike in other runs."""
    output = output_folder(run.spec["outputPath"], name=run.cluster.name, run=run.number)
    return [replace(each, folder=f"{each.folder}/".removeprefix(f"{output}/").strip("/")) for each in lines]


def images_of(run: Run, wanted: Iterable[Placed], most: int) -> list[bytes]:
    """The bytes of images, none of those that are not there and those that would make it more than `most` in all. Raises
    DriverError."""
    if not (chosen := list(wanted)):
        return []
    store, folder = output_of(run)
    driver, found = open_store(store), list[bytes]()
    for each in chosen:
        image, data = each.image, b""
        is_event = is_event_file(each.path)
        size = image.size - HEAD - TAIL if is_event else image.size
        if _is_its(each.path, folder) and size <= min(MAX_RECORD, most):
            # A file may have been removed since.
            with suppress(NotThere):
                data = driver.read_range(each.path, image.offset, image.size)
        if is_event:
            records, _, _ = frames(data)
            data = image_of(data[slice(*records[0])], image.value, image.which) if records else b""
        found.append(data if image_type(data) else b"")
        most -= len(found[-1])
    return found


def _is_its(path: str, folder: str) -> bool:
    """Whether it is an event file or an image in the output folder of the run."""
    try:
        clean = relative_path(path)
    except ValueError:
        return False
    return path == clean and (is_event_file(path) or is_image(path)) and (not folder or path.startswith(f"{folder}/"))
