"""REST: the histograms and images of a run."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from typing import TypeVar

from django.http import Http404, HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from pydantic import Field
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.views import APIView

from clusters.access import run_for
from clusters.scalars.events import MAX_RECORD
from clusters.scalars.files import UNKNOWN
from clusters.scalars.media import BINS, MAX_OUTPUTS, Image, Placed, image_type
from clusters.scalars.shown import images_of, media_of
from datastores.drivers.base import DriverError
from datastores.drivers.patience import within
from datastores.specs import MAX_PATH
from portal.api.documents import Answer
from portal.api.operations import Document, operation
from portal.api.pagination import number, text, whole
from portal.api.problems import Unavailable
from portal.api.streams import AnyAccept
from portal.api.views import person
from portal.models import User
from portal.web.limits import LOOKS

READ_SECONDS = 20
MAX_OFFSET, MAX_VALUES = 2**53, 1_000_000
T = TypeVar("T")


class LoggedHistogramStep(Answer):
    step: int
    at: dt.datetime | None
    low: float
    high: float
    counts: list[float] = Field(description=f"Values in each of {BINS} bins of equal width from `low` to `high`.")


class LoggedHistogram(Answer):
    tag: str = Field(examples=["dense/kernel/histogram"])
    folder: str = Field(description="Of its event files, in the datastore of the output.")
    points: list[LoggedHistogramStep] = Field(description="By step. Of many, evenly spaced ones and the newest.")


class LoggedImageStep(Answer):
    step: int = Field(description=f"{UNKNOWN} where the name of a file tells none.")
    at: dt.datetime | None
    caption: str
    width: int = Field(description="In pixels, as the program said; 0 if it did not.")
    height: int
    file: str
    offset: int
    size: int = Field(description="Of its record in the file, in bytes.")
    value: int
    which: int


class LoggedImage(Answer):
    """`runs_images_content` gives the bytes of a point for its `file`, `offset`, `size`, `value` and `which`."""

    tag: str
    folder: str
    number: int = Field(description="From 1 where one summary holds several images, else 0.")
    points: list[LoggedImageStep]


class LoggedHistograms(Answer):
    run: int
    items: list[LoggedHistogram]
    is_complete: bool = Field(description="False while long files are being read: the next answer has more.")
    notes: list[str] = Field(description="What is left out, and why.")


class LoggedImages(Answer):
    run: int
    items: list[LoggedImage]
    is_complete: bool = Field(description="False while long files are being read: the next answer has more.")
    notes: list[str] = Field(description="What is left out, and why.")


class Picture(BaseRenderer):
    """Declares the media type in OpenAPI. Bytes bypass the renderer."""

    media_type = "image/png"
    format = "png"
    charset = None

    def render(self, data: object, *args: object, **kwargs: object) -> bytes:
        return str(data).encode()


class RunHistograms(APIView):
    @operation("runs_histograms", LoggedHistograms)
    def get(self, request: Request, code: str, name: str, run: int) -> Document:
        """The histograms that a run wrote for TensorBoard

        Of TensorFlow, Keras, PyTorch and others, from event files in the output."""
        found = run_for(person(request), code, name, run)
        told = _read(person(request), lambda: media_of(found))
        items = [
            LoggedHistogram(
                tag=line.tag,
                folder=line.folder,
                points=[
                    LoggedHistogramStep(
                        step=p.step,
                        at=_moment(p.wall_time),
                        low=p.low,
                        high=p.high,
                        counts=[float(f"{n:.6g}") for n in p.counts],
                    )
                    for p in line.points
                ],
            )
            for line in told.histograms
        ]
        return LoggedHistograms(run=run, items=items, is_complete=told.is_complete, notes=told.notes).json_value()


class RunImages(APIView):
    @operation("runs_images", LoggedImages)
    def get(self, request: Request, code: str, name: str, run: int) -> Document:
        """The images that a run wrote

        PNG, JPEG, GIF and WebP in its output: in event files of TensorBoard, those of W&B and MLflow, and other
        files. Files of one folder whose names differ in their last number are one image at several steps."""
        found = run_for(person(request), code, name, run)
        told = _read(person(request), lambda: media_of(found))
        items = [
            LoggedImage(
                tag=line.tag, folder=line.folder, number=line.which, points=[_image(point) for point in line.points]
            )
            for line in told.images
        ]
        return LoggedImages(run=run, items=items, is_complete=told.is_complete, notes=told.notes).json_value()


class RunImage(APIView):
    renderer_classes = (Picture,)
    content_negotiation_class = AnyAccept

    @operation(
        "runs_images_content",
        {(200, "image/png"): OpenApiTypes.BINARY},
        parameters=[
            OpenApiParameter("file", str, required=True),
            OpenApiParameter("offset", whole(0, MAX_OFFSET), required=True),
            OpenApiParameter("size", whole(16, MAX_RECORD + 16), required=True),
            OpenApiParameter("value", whole(0, MAX_VALUES)),
            OpenApiParameter("which", whole(0, MAX_OUTPUTS)),
        ],
    )
    def get(self, request: Request, code: str, name: str, run: int) -> HttpResponse:
        """One image of a run

        As the program wrote it; `Content-Type` says whether it is PNG, JPEG, GIF or WebP."""
        found = run_for(person(request), code, name, run)
        path = text(request, "file", longest=MAX_PATH)
        at = {
            key: number(request, key, default=low, low=low, high=high)
            for key, low, high in (
                ("offset", 0, MAX_OFFSET),
                ("size", 16, MAX_RECORD + 16),
                ("value", 0, MAX_VALUES),
                ("which", 0, MAX_OUTPUTS),
            )
        }
        wanted = Placed(path, Image(0, 0.0, at["offset"], at["size"], at["value"], at["which"], 0, 0))
        data = b""
        if found.spec["output"]:
            (data,) = _read(person(request), lambda: images_of(found, [wanted], MAX_RECORD))
        if not data:
            raise Http404("There is no such image.")
        return HttpResponse(
            data,
            content_type=f"image/{image_type(data)}",
            headers={
                "Content-Security-Policy": "default-src 'none'; sandbox",
                "X-Content-Type-Options": "nosniff",
                "Content-Disposition": f'attachment; filename="image.{image_type(data)}"',
            },
        )


def _read(user: User, read: Callable[[], T]) -> T:
    try:
        with LOOKS.enter(user.pk), within(READ_SECONDS):
            return read()
    except DriverError as error:
        raise Unavailable(str(error)) from error


def _image(point: Placed) -> LoggedImageStep:
    image = point.image
    return LoggedImageStep(
        step=image.step, at=_moment(image.wall_time), caption=image.caption, width=image.width, height=image.height,
        file=point.path, offset=image.offset, size=image.size, value=image.value, which=image.which,
    )  # fmt: skip


def _moment(seconds: float) -> dt.datetime | None:
    """A time that a program wrote, which may be any number."""
    if not math.isfinite(seconds) or not 0 < seconds < 2**32:
        return None
    return dt.datetime.fromtimestamp(seconds, dt.UTC)
