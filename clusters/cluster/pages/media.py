"""The histograms, images and tables of a run on the Metrics tab (clusters/scalars/shown.py).

Images are parts of the page, as `data:` URLs of a type that their bytes have: none has an address at which a browser could take
it for a page of the portal. So a page has room for some of them: the newest of each name first, then earlier ones. `?image=NAME`
shows one name, with all steps that are kept.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.cache import get_conditional_response
from django.views.decorators.http import require_safe

from clusters.cluster.pages.cluster import page_of
from clusters.cluster.pages.metrics import has_words, labels
from clusters.runs.models import Run
from clusters.scalars.events import Shown
from clusters.scalars.files import UNKNOWN
from clusters.scalars.media import Histogram, Placed, image_type, quantile, sides
from clusters.scalars.reading import output_of
from clusters.scalars.shown import Media, images_of, in_output, media_of
from datastores.drivers.base import DriverError
from datastores.drivers.patience import within
from portal.api.problems import Unavailable
from portal.pages.appcodes import person
from portal.pages.charts import number
from portal.pages.layout import words
from portal.pages.ridges import Heap, Ridges, draw_ridges
from portal.web.limits import LOOKS

READ_SECONDS = 20
# Names shown at first, and if somebody asks for all.
FIRST, MOST = 12, 60
# Images on one page, and their bytes together.
MAX_IMAGES, MAX_BYTES = 60, 2 * 1024 * 1024
# Steps of one table that are offered: the newest.
MAX_TABLE_STEPS = 20
# Pixels of the longer side of an image that is shown enlarged.
SMALL = 160


@dataclass(frozen=True)
class Frame:
    """An image of one step; `url` is empty if the page has no room for it."""

    placed: Placed
    url: str

    @property
    def is_small(self) -> bool:
        """Whether it is enlarged, so that its pixels are seen."""
        return 0 < max(self.placed.image.width, self.placed.image.height) < SMALL


@dataclass(frozen=True)
class Film:
    """The images of one name, newest first; `query` shows this name alone."""

    title: str
    label: str
    query: str
    frames: list[Frame] = field(default_factory=list)
    more: int = 0


@dataclass(frozen=True)
class Distribution:
    """A histogram over the steps, and the same as a table, newest first."""

    title: str
    label: str
    drawn: Ridges
    rows: list[tuple[str, list[str]]]
    summary: str


@dataclass(frozen=True)
class Table:
    """The tables of one name, newest first: what tells each apart, with the page of the file. The newest is shown."""

    title: str
    label: str
    files: list[tuple[str, str]]


@require_safe
def media(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    shown = page_of(request, appcode, name)
    only, all_of_them = request.GET.get("image", ""), "all" in request.GET
    asked = {key: request.GET[key] for key in ("run", "image", "all") if request.GET.get(key)}
    context: dict[str, object] = {"page": shown, "only": only, "query": "?" + urlencode(asked) if asked else ""}
    run, etag, response = shown.run, "", None
    if run:
        try:
            with LOOKS.enter(person(request).pk), within(READ_SECONDS):
                found = media_of(run)
                etag = _etag(run, found, request.META["QUERY_STRING"])
                response = get_conditional_response(request, etag=etag)
                if response is None:
                    context |= _context(run, found, only, MOST if all_of_them else FIRST, words(request, "find"))
        except (DriverError, Unavailable) as error:
            context |= {"error": str(error), "again": True}
            etag = ""
    if response is None:
        response = render(request, "clusters/cluster/_media.html", context)
    if etag:
        response["ETag"] = etag
    return response


def _etag(run: Run, found: Media, query: str) -> str:
    """Of what there is, so that an unchanged part reads no images again."""
    several = (*found.histograms, *found.images, *found.tables)
    lines = [(each.tag, each.folder, each.which, each.points) for each in several]
    told = repr((lines, found.notes, found.is_complete, run.number, run.is_terminal, query))
    return f'"{hashlib.blake2b(told.encode(), digest_size=12).hexdigest()}"'


def _context(run: Run, found: Media, only: str, most: int, find: str) -> dict[str, object]:
    images = [
        each for each in in_output(run, found.images) if (not only or each.tag == only) and has_words(each.tag, find)
    ]
    histograms = [] if only else [each for each in in_output(run, found.histograms) if has_words(each.tag, find)]
    tables = [] if only else [each for each in in_output(run, found.tables) if has_words(each.tag, find)]
    return {
        "films": films(run, images[:most]),
        "distributions": [
            distribution(each, label)
            for each, label in zip(histograms[:most], labels_of(histograms[:most]), strict=True)
        ],
        "tables": tables_of(run, tables[:most]),
        "total_tables": len(tables),
        "images": len(images),
        "histograms": len(histograms),
        "more": max(len(images), len(histograms), len(tables)) > most,
        "most": most,
        "may_have_more": most < MOST,
        "notes": found.notes,
        "again": not found.is_complete,
    }


def films(run: Run, lines: Sequence[Shown]) -> list[Film]:
    """The images of each name as far as there is room: the newest of all names first. Raises DriverError."""
    newest = [list(reversed(line.points)) for line in lines]
    turns = [(n, each) for turn in zip_longest(*newest) for n, each in enumerate(turn) if each][:MAX_IMAGES]
    made = [
        Film(line.tag, label, urlencode({"image": line.tag}))
        for line, label in zip(lines, labels_of(lines), strict=True)
    ]
    for (n, each), data in zip(turns, images_of(run, [each for _, each in turns], MAX_BYTES), strict=True):
        made[n].frames.append(frame_of(each, data))
    return [replace(film, more=len(all_) - len(film.frames)) for film, all_ in zip(made, newest, strict=True)]


def frame_of(placed: Placed, data: bytes) -> Frame:
    """With its sides, which the name of a file does not tell."""
    if not placed.image.width and data:
        width, height = sides(data)
        placed = replace(placed, image=replace(placed.image, width=width, height=height))
    return Frame(placed, data_url(data))


def tables_of(run: Run, lines: Sequence[Shown]) -> list[Table]:
    if not lines:
        return []
    store, _ = output_of(run)
    address = reverse("datastore_preview", args=[store.appcode.code, store.name])
    return [
        Table(
            line.tag, label,
            [
                (f"step {each.step:,}" if each.step != UNKNOWN else "", f"{address}?{urlencode({'path': each.path})}")
                for each in reversed(line.points[-MAX_TABLE_STEPS:])
            ],
        )
        for line, label in zip(lines, labels_of(lines), strict=True)
    ]  # fmt: skip


def data_url(data: bytes) -> str:
    """An image as a part of the page; "" for none."""
    return f"data:image/{image_type(data)};base64,{b64encode(data).decode()}" if data else ""


def labels_of(lines: Sequence[Shown]) -> list[str]:
    """What tells apart those of one name: folders without what they have in common, and numbers."""
    folders = [line.folder for line in lines]
    short = dict(zip(dict.fromkeys(folders), labels(list(dict.fromkeys(folders))), strict=True))
    named = Counter((line.tag, line.which) for line in lines)

    def label(line: Shown) -> str:
        folder = short[line.folder] if named[line.tag, line.which] > 1 else ""
        return " · ".join(filter(None, [folder, f"number {line.which}" if line.which else ""]))

    return [label(line) for line in lines]


def distribution(line: Shown, label: str) -> Distribution:
    steps: Sequence[Histogram] = line.points
    rows = [(f"{each.step:,}", _row(each)) for each in steps]
    heaps = [
        Heap(step, each.low, each.high, each.counts, f"step {step}: {row[0]} values from {row[1]} to {row[5]}, median {row[3]}")
        for each, (step, row) in zip(steps, rows, strict=True)
    ]  # fmt: skip
    first, last = rows[0], rows[-1]
    summary = (
        f"{line.tag}: at step {last[0]} values from {last[1][1]} to {last[1][5]}, median {last[1][3]}; "
        f"at step {first[0]} from {first[1][1]} to {first[1][5]}, median {first[1][3]}."
    )
    return Distribution(line.tag, label, draw_ridges(heaps), list(reversed(rows)), summary)


def _row(each: Histogram) -> list[str]:
    quartiles = [quantile(each, share) for share in (0.25, 0.5, 0.75)]
    return [f"{round(sum(each.counts)):,}", *(number(value) for value in (each.low, *quartiles, each.high))]
