"""Histograms and images of event files: what hostile or unusual bytes come to, and how little is kept of much."""

from __future__ import annotations

import math

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2

from clusters.scalars import events, media
from clusters.scalars.events import Progress, histograms_in, images_in, read
from portal.pages.ridges import Heap, draw_ridges
from tests.clusters.scalars.test_scalars import File, Store, event, record

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 24


def of(*values: summary_pb2.Summary.Value, step: int = 1) -> bytes:
    return record(
        event_pb2.Event(wall_time=step, step=step, summary=summary_pb2.Summary(value=values)).SerializeToString()
    )


def image(data: bytes, tag: str = "picture", **sides: int) -> summary_pb2.Summary.Value:
    return summary_pb2.Summary.Value(tag=tag, image=summary_pb2.Summary.Image(encoded_image_string=data, **sides))


def histo(limits: list[float], counts: list[float], tag: str = "weights", **ends: float) -> summary_pb2.Summary.Value:
    told = summary_pb2.HistogramProto(bucket_limit=limits, bucket=counts, **ends)
    return summary_pb2.Summary.Value(tag=tag, histo=told)


def rows(rows: list[float], columns: int = 3, plugin: str = "histograms") -> summary_pb2.Summary.Value:
    shape = tensor_shape_pb2.TensorShapeProto(
        dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=n) for n in (len(rows) // columns, columns)]
    )
    value = summary_pb2.Summary.Value(
        tag="weights", tensor=tensor_pb2.TensorProto(dtype=types_pb2.DT_DOUBLE, tensor_shape=shape, double_val=rows)
    )
    value.metadata.plugin_data.plugin_name = plugin
    return value


def found(*bodies: bytes) -> dict[str, Progress]:
    store = Store(*(File(f"{n}/1.tfevents", body) for n, body in enumerate(bodies)))
    return read(store.files, store.read_range, {})[1]


@pytest.mark.parametrize(
    "data",
    [b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>", b"<html>", b"BM" + b"\0" * 60, b""],
)
def test_only_pictures_that_browsers_take_for_nothing_else_are_shown(data):
    progress = found(of(image(data), image(PNG, "good")))
    assert [each.tag for each in images_in(progress)] == ["good"]
    assert progress["0/1.tfevents"].media.left_out == 1
    assert media.image_of(of(image(data))[12:-4], 0, 0) == b""


def test_sides_that_a_program_makes_up_are_bounded():
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[b"9" * 400, b"wide", PNG])
    value = summary_pb2.Summary.Value(tag="picture", tensor=tensor)
    value.metadata.plugin_data.plugin_name = "images"
    ((made,),) = (each.points for each in images_in(found(of(value))))
    assert (made.image.width, made.image.height) == (media.MAX_SIDE, 0)


@pytest.mark.parametrize(
    "value",
    [
        histo([1, 2], [1], min=0, max=2),
        histo([math.inf, math.nan], [1, 1], min=math.nan, max=math.inf),
        histo([1], [math.inf], min=0, max=1),
        histo([1], [1e300], min=0, max=1),
        histo([1], [0], min=0, max=1),
        rows([]),
        rows([0, 1, 5, 7], columns=4),
        rows([1, 0, 5]),
        rows([0, 1, 5], plugin="scalars"),
    ],
)
def test_buckets_without_sense_are_left_out(value):
    assert histograms_in(found(of(value))) == []


buckets = st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e6), st.floats(0.01, 1e6)), min_size=1, max_size=20)


@given(told=buckets)
def test_binning_loses_no_value(told):
    several = [(left, left + width, count) for left, width, count in told]
    low, high = min(left for left, _, _ in several), max(right for _, right, _ in several)
    counts = media.binned(several, low, high, media.BINS)
    assert math.isclose(sum(counts), sum(count for *_, count in several), rel_tol=1e-6)
    made = media.Histogram(1, 1.0, low, high, tuple(counts))
    quartiles = [media.quantile(made, share) for share in (0.25, 0.5, 0.75)]
    assert quartiles == sorted(quartiles)
    assert low <= quartiles[0]
    assert quartiles[2] <= high
    heap = Heap("1", low, high, counts)
    for ridge in draw_ridges([heap, heap]).ridges:
        assert "nan" not in ridge.path
        assert "inf" not in ridge.path


def test_of_much_little_is_kept_and_it_comes_back_as_it_was():
    several = [histo([1, 2], [1, 3], f"w{n}", min=0, max=2) for n in range(80)]
    long = b"".join(of(image(PNG), histo([1], [step + 1], min=0, max=1), step=step) for step in range(200))
    progress = found(long, of(*several) + event(1, loss=1))
    lines = [*images_in(progress), *(each for each in histograms_in(progress) if each.tag == "weights")]
    steps = [[p.step for p in each.points] for each in lines]
    assert steps[0] == steps[1]
    assert media.MAX_STEPS <= len(steps[0]) <= 2 * media.MAX_STEPS
    assert (steps[0][0], steps[0][-1]) == (0, 199)
    many = progress["1/1.tfevents"]
    assert (len(many.media.histograms), many.media.is_crowded) == (media.MAX_TAGS_PER_FILE, True)
    assert list(many.series) == ["loss"]
    kept = {path: Progress.from_json(orjson.loads(orjson.dumps(each.to_json()))) for path, each in progress.items()}
    assert repr(kept) == repr(progress)


def test_a_run_of_many_files_keeps_no_more_than_one_of_few(monkeypatch):
    monkeypatch.setattr(events, "MAX_TAGS", 5)
    progress = found(*(of(*(image(PNG, f"{n}-{m}") for m in range(3))) for n in range(4)))
    assert len(images_in(progress)) == 5
    assert progress["3/1.tfevents"].media.is_crowded


def test_what_later_events_do_not_repeat_is_remembered():
    bare = rows([0, 1, 5])
    bare.ClearField("metadata")
    first = of(rows([0, 1, 5]), step=1)
    store = Store(File("1.tfevents", first))
    _, known = read(store.files, store.read_range, {})
    known = {path: Progress.from_json(orjson.loads(orjson.dumps(each.to_json()))) for path, each in known.items()}
    store.files = [File("1.tfevents", first + of(bare, step=2), version=1)]
    _, known = read(store.files, store.read_range, known)
    assert [p.step for p in histograms_in(known)[0].points] == [1, 2]


def test_large_images_are_counted_and_graphs_are_not(monkeypatch):
    monkeypatch.setattr(events, "CHUNK", 4000)
    monkeypatch.setattr(events, "MAX_RECORD", 1000)
    graph = record(event_pb2.Event(wall_time=1, step=300, graph_def=b"x" * 2000).SerializeToString())
    middle, large = (of(image(PNG + b"x" * size), step=300) for size in (2000, 9000))
    progress = found(middle + graph + large + event(1, loss=1))
    assert progress["0/1.tfevents"].media.left_out == 2


def test_a_peak_leaves_later_ridges_visible():
    counts = [1.0] * 30
    drawn = draw_ridges([Heap("0", 0, 0, counts), Heap("1", -0.001, 0.001, counts), Heap("2", -1, 1, counts)])
    (*_, last) = drawn.ridges
    heights = [float(pair.split()[1]) for pair in last.path[1:].split("L")]
    assert 1000 - min(heights) > 5
    assert [ridge.shade for ridge in drawn.ridges] == [4, 2, 1]
