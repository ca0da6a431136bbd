"""Scalars are read piecewise from real event files, as written by TensorBoard's own writer and by TensorFlow."""

from __future__ import annotations

import itertools
import math
import struct
import time
from dataclasses import dataclass, replace
from types import SimpleNamespace

import orjson
import pytest
from django.core.cache import cache
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2

from clusters import wakeups
from clusters.clouds.drivers.base import LogChunk
from clusters.clouds.drivers.marks import SIZE
from clusters.cluster import actions as clusters
from clusters.logs.read import Copy, RunLogs
from clusters.runs import resync
from clusters.runs.models import Run
from clusters.scalars import events as scalars
from clusters.scalars import media, reading
from clusters.scalars.counted import PATIENCE, kept, note_crashes
from clusters.scalars.events import Progress, Series, read, tag_order
from datastores.drivers.base import DriverError
from datastores.models import Datastore
from datastores.tfrecord import masked_crc32c, split_records


@dataclass
class File:
    path: str
    data: bytes
    version: int = 0

    @property
    def size(self):
        return len(self.data)

    @property
    def etag(self):
        return f"{self.version}-{len(self.data)}"


def record(message: bytes) -> bytes:
    length = struct.pack("<Q", len(message))
    return length + struct.pack("<I", masked_crc32c(length)) + message + struct.pack("<I", masked_crc32c(message))


def event(step: int, *, at: float = 1.0, **values: float) -> bytes:
    summary = summary_pb2.Summary(
        value=[summary_pb2.Summary.Value(tag=tag, simple_value=v) for tag, v in values.items()]
    )
    return record(event_pb2.Event(wall_time=at, step=step, summary=summary).SerializeToString())


class Store:
    """Counts the bytes read."""

    def __init__(self, *files: File):
        self.files, self.bytes_read = list(files), 0

    def read_range(self, path, start, length):
        data = next(file.data for file in self.files if file.path == path)[start : start + length]
        self.bytes_read += len(data)
        return data


def points(found, tag, folder=None):
    (curve,) = [c for c in found.curves if c.tag == tag and folder in (None, c.folder)]
    return [(p.step, round(p.value, 4)) for p in curve.points]


def test_what_tensorflow_wrote_is_read(tmp_path):
    """TensorFlow runs in a separate process because it is large; the portal never imports it."""
    import subprocess
    import sys

    program = """
import sys, tensorflow as tf
with tf.summary.create_file_writer(sys.argv[1]).as_default():
    for step in range(5):
        tf.summary.scalar("loss", 1 / (step + 1), step=step)
        tf.summary.histogram("weights", tf.linspace(-1.0, 2.0, 300), step=step)
        tf.summary.histogram("zeros", tf.zeros([7]), step=step)
        tf.summary.image("digits", tf.fill([2, 4, 6, 3], step / 5), step=step)
        tf.summary.image("noise", tf.random.uniform([1, 700, 700, 3]), step=step)
        tf.summary.text("note", "hello", step=step)
v1 = tf.compat.v1
with v1.Graph().as_default(), v1.Session() as session:
    old = v1.summary.FileWriter(sys.argv[1] + "/old")
    old.add_summary(v1.Summary(value=[v1.Summary.Value(tag="accuracy", simple_value=0.5)]), 3)
    both = [v1.summary.histogram("biases", tf.linspace(1.0, 3.0, 200)), v1.summary.image("first", tf.zeros([1, 5, 9, 1]))]
    old.add_summary(session.run(v1.summary.merge(both)), 4)
    old.close()
import keras
model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(3, name="dense")])
model.compile("sgd", "mse")
logs = keras.callbacks.TensorBoard(sys.argv[1] + "/keras", histogram_freq=1)
model.fit(tf.ones([4, 2]), tf.ones([4, 3]), epochs=2, verbose=0, callbacks=[logs])
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, capture_output=True)
    paths = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    store = Store(*(File(str(path.relative_to(tmp_path)), path.read_bytes()) for path in paths))
    found, progress = read(store.files, store.read_range, {})
    assert found.tags[:2] == ["epoch_loss", "loss"]
    assert points(found, "loss", "") == [(0, 1.0), (1, 0.5), (2, 0.3333), (3, 0.25), (4, 0.2)]
    assert points(found, "accuracy", "old") == [(3, 0.5)]
    assert found.notes == ()
    assert_media(progress, store)


def assert_media(progress, store):
    told = {
        (each.tag, each.folder): [
            (p.step, round(p.low, 2), round(p.high, 2), round(sum(p.counts))) for p in each.points
        ]
        for each in scalars.histograms_in(progress)
    }
    kernel = told.pop(("dense/kernel/histogram", "keras/train"), None) or told.pop(
        ("sequential/dense/kernel/histogram", "keras/train")
    )
    assert [(step, count) for step, _, _, count in kernel] == [(0, 6), (1, 6)]
    assert told["weights", ""] == [(step, -1.0, 2.0, 300) for step in range(5)]
    assert told["zeros", ""][0] == (0, 0.0, 0.0, 7)
    assert told["biases", "old"] == [(4, 1.0, 3.0, 200)]
    (evenly,) = [each.points[0].counts for each in scalars.histograms_in(progress) if each.tag == "weights"]
    assert min(evenly) > 8
    assert max(evenly) < 12, "300 values in 30 bins"

    images = {(each.tag, each.which, each.folder): each.points for each in scalars.images_in(progress)}
    assert {key: [(p.step, p.image.width, p.image.height) for p in several] for key, several in images.items()} == {
        ("digits", 1, ""): [(step, 6, 4) for step in range(5)],
        ("digits", 2, ""): [(step, 6, 4) for step in range(5)],
        ("first/image/0", 0, "old"): [(4, 9, 5)],
    }
    # Noise of 700 × 700 pixels takes more than 1 MiB.
    assert sum(file.media.left_out for file in progress.values()) == 5
    for several in images.values():
        for placed in several:
            image = placed.image
            data = store.read_range(placed.path, image.offset, image.size)
            ((record,), _, _) = split_records(data, scalars.MAX_RECORD)
            assert media.image_of(record, image.value, image.which)[16:24] == struct.pack(
                ">II", image.width, image.height
            )


def test_the_portal_reads_them_without_tensorflow_and_numpy():
    import subprocess
    import sys

    program = "import sys, clusters.scalars.events; assert not {'tensorflow', 'numpy'} & set(sys.modules), sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


@given(cuts=st.lists(st.integers(0, 2000), max_size=6).map(sorted), steps=st.integers(0, 40))
def test_a_file_that_grows_reads_the_same_as_the_whole(cuts, steps):
    whole = b"".join(event(step, loss=step / 2, speed=3) for step in range(steps))
    at_once, _ = read([File("a.tfevents.1", whole)], Store(File("a.tfevents.1", whole)).read_range, {})
    known: dict[str, Progress] = {}
    bytes_read = 0
    for n, cut in enumerate([*cuts, len(whole)]):
        file = File("a.tfevents.1", whole[:cut], version=n)
        store = Store(file)
        found, known = read([file], store.read_range, known)
        bytes_read += store.bytes_read
    assert found.curves == at_once.curves
    # Only incomplete records are read twice.
    assert bytes_read <= len(whole) + 200 * (len(cuts) + 1)


def test_a_file_that_has_not_changed_is_not_read_again():
    store = Store(File("x/events.out.tfevents.1", event(1, loss=0.5)))
    first, known = read(store.files, store.read_range, {})
    before = store.bytes_read
    again, _ = read(store.files, store.read_range, known)
    assert (again, store.bytes_read) == (first, before)


def test_a_shorter_file_of_the_same_name_starts_anew():
    store = Store(File("a.tfevents", event(1, loss=1) + event(2, loss=2)))
    _, known = read(store.files, store.read_range, {})
    store.files = [File("a.tfevents", event(9, loss=9), version=1)]
    found, _ = read(store.files, store.read_range, known)
    assert points(found, "loss") == [(9, 9.0)]


def test_what_a_restarted_program_repeats_replaces_what_it_lost():
    first = File("s/1.tfevents", b"".join(event(step, at=step, loss=step) for step in range(10)))
    second = File("s/2.tfevents", b"".join(event(step, at=100 + step, loss=-step) for step in range(6, 9)))
    store = Store(first, second)
    found, _ = read(store.files, store.read_range, {})
    assert points(found, "loss") == [*((n, n) for n in range(6)), (6, -6), (7, -7), (8, -8)]


def test_programs_that_write_at_the_same_time_do_not_erase_each_other():
    one = File("s/1.tfevents", b"".join(event(step, at=step, loss=1) for step in range(4)))
    two = File("s/2.tfevents", b"".join(event(step, at=step + 0.5, loss=2) for step in range(4)))
    found, _ = read([one, two], Store(one, two).read_range, {})
    assert len(points(found, "loss")) == 8


def test_damage_is_noted_and_what_came_before_is_shown():
    file = File("a.tfevents", event(1, loss=1) + b"\xff" * 64 + event(2, loss=2))
    found, known = read([file], Store(file).read_range, {})
    assert points(found, "loss") == [(1, 1.0)]
    assert "damaged" in found.notes[0]
    assert known["a.tfevents"].is_complete


def test_large_records_are_stepped_over(monkeypatch):
    monkeypatch.setattr(scalars, "CHUNK", 1000)
    monkeypatch.setattr(scalars, "MAX_RECORD", 500)
    file = File(
        "a.tfevents", event(1, loss=1) + record(b"x" * 5000) + event(2, loss=2) + record(b"y" * 700) + event(3, loss=3)
    )
    found, _ = read([file], Store(file).read_range, {})
    assert points(found, "loss") == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_a_page_reads_a_bounded_amount_and_goes_on_with_the_next(monkeypatch):
    monkeypatch.setattr(scalars, "CHUNK", 400)
    monkeypatch.setattr(scalars, "MAX_BYTES", 1000)
    file = File("a.tfevents", b"".join(event(step, loss=step) for step in range(200)))
    store = Store(file)
    found, known = read([file], store.read_range, {})
    assert store.bytes_read < 2000
    assert "Still reading" in found.notes[0]
    while found.notes:
        found, known = read([file], store.read_range, known)
    assert len(points(found, "loss")) == 200


def test_long_lines_are_thinned_out_evenly_and_keep_their_end():
    series = Series()
    for step in range(10_001):
        series.add(scalars.Point(step, step, step))
    steps = [point.step for point in series.all]
    assert 1000 <= len(steps) <= 2001
    assert steps[0] == 0
    assert steps[-1] == 10_000
    assert len({b - a for a, b in itertools.pairwise(steps)}) == 1


def test_not_a_number_is_kept_as_what_it_is():
    file = File("a.tfevents", event(1, loss=math.nan) + event(2, loss=math.inf))
    found, _ = read([file], Store(file).read_range, {})
    assert [str(p.value) for p in found.curves[0].points] == ["nan", "inf"]


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, float_val=[0.5]), 0.5),
        (tensor_pb2.TensorProto(dtype=types_pb2.DT_DOUBLE, tensor_content=struct.pack("<d", 0.25)), 0.25),
        (tensor_pb2.TensorProto(dtype=types_pb2.DT_INT64, int64_val=[7]), 7.0),
        (tensor_pb2.TensorProto(dtype=types_pb2.DT_HALF, tensor_content=struct.pack("<e", 1.5)), 1.5),
        (tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[b"x"]), None),
        (tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, float_val=[1, 2]), None),
    ],
)
def test_tensors_of_one_number_are_scalars(tensor, expected):
    assert scalars._scalar(summary_pb2.Summary.Value(tag="t", tensor=tensor)) == expected


@given(data=st.binary(max_size=300))
def test_no_bytes_make_it_fail(data):
    for content in (data, event(1, loss=1) + data, record(data)):
        file = File("a.tfevents", content)
        read([file], Store(file).read_range, {})
        split_records(content, scalars.MAX_RECORD)


def test_only_event_files_are_looked_at():
    names = [
        "events.out.tfevents.1.host",
        "x/events.out.tfevents.2",
        "model/saved_model.pb",
        "a.tfevents.3.profile-empty",
    ]
    assert [name for name in names if scalars.is_event_file(name)] == names[:2]


def test_what_is_remembered_of_a_run_is_bounded_and_comes_back_as_it_was(monkeypatch):
    monkeypatch.setattr(scalars, "MAX_POINTS", 50)
    long = File(
        "long/1.tfevents", b"".join(event(step, loss=math.nan if step % 2 else step / 3) for step in range(170))
    )
    short = File("short/1.tfevents", b"".join(event(step, loss=-step, **{"x" * 201: 1}) for step in range(20)))
    store = Store(long, short)
    _, known = read(store.files, store.read_range, {})
    scalars.thin(known.values(), 60)
    counts = {path: [len(each.points) for each in file.series.values()] for path, file in known.items()}
    assert counts == {"long/1.tfevents": [22], "short/1.tfevents": [20]}
    kept = {path: Progress.from_json(orjson.loads(orjson.dumps(each.to_json()))) for path, each in known.items()}
    assert repr(kept) == repr(known)
    for progress in (known, kept):
        store.files = [File(long.path, long.data + event(999, loss=9), version=1), short]
        found, _ = read(store.files, store.read_range, progress)
        assert points(found, "loss", "long")[-1] == (999, 9)
        assert points(found, "loss", "short") == [(n, -n) for n in range(20)]


def test_what_was_read_is_remembered_when_the_rest_takes_too_long():
    files = [File(f"{n}.tfevents", event(n, loss=n)) for n in range(3)]
    store, known = Store(*files), {}

    def slow(path, start, length):
        if path == "2.tfevents":
            raise TimeoutError
        return store.read_range(path, start, length)

    with pytest.raises(TimeoutError):
        read(files, slow, known)
    before = store.bytes_read
    found, _ = read(files, store.read_range, known)
    assert (len(points(found, "loss")), store.bytes_read - before) == (3, files[2].size)


def test_what_a_program_prints_is_read_as_it_says_it():
    from clusters.scalars.printed import scalars_of_log

    log = b"""step 75: loss = 0.4123, accuracy = 0.9120, global_step/sec: 51.2000
epoch=3 val_loss=2e-1 at 12:30:01
{'loss': 0.3, 'step': 80}
INFO:tensorflow:loss = 0.25, step = 100 (0.5 sec)
Epoch [4/5], Step [100/600], loss: 0.5
{'eval_loss': '0.69', 'epoch': '2.0'}
step 75: loss = nan
2026-01-01 x=3, no line with one of those words
"""
    curves = {each.tag: [(point.step, point.value) for point in each.points] for each in scalars_of_log(log).curves}
    assert math.isnan(curves["loss"].pop(1)[1])
    assert curves == {
        "loss": [(4, 0.5), (80, 0.3), (100, 0.25)],
        "eval_loss": [(2, 0.69)],
        "accuracy": [(75, 0.912)],
        "global_step/sec": [(75, 51.2)],
        "val_loss": [(3, 0.2)],
    }


@pytest.mark.parametrize(
    ("log", "curves"),
    [
        ("step 4 loss 0.2\nstep 5 loss 0.1 acc 9e-1\n", {"loss": [(4, 0.2), (5, 0.1)], "acc": [(5, 0.9)]}),
        (
            "step 0: train loss 4.28, val loss 4.29\niter 10: loss 3.2, time 23.14ms, mfu 17.1%\n",
            {"train loss": [(0, 4.28)], "val loss": [(0, 4.29)], "loss": [(10, 3.2)]},
        ),
        (
            "Epoch: [0][   1/5005]\tTime  5.3 (  5.3)\tLoss 7.0e+00 (7.0e+00)\tAcc@1   0.00 (  0.00)\n",
            {"Time": [(0, 5.3)], "Loss": [(0, 7.0)], "Acc@1": [(0, 0.0)]},
        ),
        (
            (
                "Train Epoch: 1 [0/60000 (0%)]\tLoss: 2.3\n\n"
                "Test set: Average loss: 0.0455, Accuracy: 9847/10000 (98%)\nTotal: 1\na\nTotal: 2\n"
            ),
            {"Loss": [(1, 2.3)], "Average loss": [(1, 0.0455)], "Total": [(1, 1.0)]},
        ),
        (
            "Epoch 1:  50%|##  | 4/9 [00:02<00:03, 160.12it/s, v_num=0, train_loss=0.2]\n",
            {"train_loss": [(1, 0.2)]},
        ),
        (
            "[0]\ttrain-rmse:0.48\tvalid-rmse:0.49\n[1]\tvalid_0's l2: 0.24\n[2,  4000] loss: 1.8\n[LightGBM] [Info] Bins: 613\n",
            {"train-rmse": [(0, 0.48)], "valid-rmse": [(0, 0.49)], "valid_0's l2": [(1, 0.24)], "loss": [(2, 1.8)]},
        ),
        (
            "Epoch 1, Loss: 0.13, Test Loss: 0.06\nFinished epoch 2 with learning rate: 1e-3\n",
            {"Loss": [(1, 0.13)], "Test Loss": [(1, 0.06)], "learning rate": [(2, 0.001)]},
        ),
        ("step 5 of 100 done in 3 s\nEpoch 5 took 12.3 seconds\nEpoch 5 took 12.3\nstep 7 uses 4 of 8\n", {}),
    ],
    ids=["plain", "nanogpt", "imagenet", "mnist", "lightning", "boosting", "several-words", "prose"],
)
def test_the_lines_of_public_examples_are_read_as_they_are(log, curves):
    from clusters.scalars.printed import scalars_of_log

    found = scalars_of_log(log.encode()).curves
    assert {each.tag: [(point.step, point.value) for point in each.points] for each in found} == curves


@pytest.mark.parametrize(
    ("log", "curves"),
    [
        (  # Keras 3 with a progress bar; `evaluate` at the end draws another one
            (
                "Epoch 1/2\n\n\x1b[1m 1/40\x1b[0m \x1b[37m━━\x1b[0m \x1b[1m16:01\x1b[0m 3s/step - loss: 2.37\x08\x08\r"
                "\x1b[1m40/40\x1b[0m \x1b[32m━━\x1b[0m \x1b[1m0s\x1b[0m 9ms/step - loss: 0.31\x08\x08\r"
                "\x1b[1m40/40\x1b[0m \x1b[32m━━\x1b[0m \x1b[1m6s\x1b[0m 9ms/step - loss: 0.29 - val_loss: 0.35\n"
                "Epoch 2/2\n\n\x1b[1m40/40\x1b[0m ━━ 1s 9ms/step - loss: 0.07 - val_loss: 0.11\n"
                "\x1b[1m 1/10\x1b[0m ━━ 0s 2ms/step - loss: 9.5\r\x1b[1m10/10\x1b[0m ━━ 0s 2ms/step - loss: 9.1\n"
            ),
            {"loss": [(1, 0.29), (2, 0.07)], "val_loss": [(1, 0.35), (2, 0.11)]},
        ),
        (  # Keras 2, and a dataset of unknown length
            "Epoch 1/1\n\r      1/Unknown - 1s 1s/step - loss: 3.0\b\b\b\b9/9 [=====] - 1s 4ms/step - loss: 2.0 - mae: 1e-1\n",
            {"loss": [(1, 2.0)], "mae": [(1, 0.1)]},
        ),
        (  # verbose=2
            "Epoch 1/2\n40/40 - 2s - 5ms/step - loss: 0.4\nEpoch 2/2\n40/40 - 1s - loss: 0.3\n10/10 - 0s - loss: 9.0\n",
            {"loss": [(1, 0.4), (2, 0.3)]},
        ),
        (  # PyTorch's quickstart
            "Epoch 1\n-------\nloss: 2.3  [   64/60000]\nloss: 2.1  [ 6464/60000]\nEpoch 2\n-------\nloss: 1.9  [   64/60000]\n",
            {"loss": [(1, 2.1), (2, 1.9)]},
        ),
        ("loss: 0.5\n3/4 - loss: 0.1\nThe epoch 5 begins\nloss: 1\n", {}),
    ],
    ids=["keras-3", "keras-2", "keras-verbose-2", "pytorch", "no-heading"],
)
def test_numbers_below_the_heading_of_an_epoch_are_its_own(log, curves):
    from clusters.scalars.printed import scalars_of_log

    found = scalars_of_log(log.encode()).curves
    assert {each.tag: [(point.step, point.value) for point in each.points] for each in found} == curves


@pytest.mark.parametrize(
    ("table", "lines"),
    [
        (  # Lightning's CSVLogger
            "epoch,step,train_loss,val_loss\n0,49,0.5,\n0,99,,0.4\n1,149,0.3,\n",
            {"epoch": [(49, 0), (99, 0), (149, 1)], "train_loss": [(49, 0.5), (149, 0.3)], "val_loss": [(99, 0.4)]},
        ),
        (  # Keras' CSVLogger, which writes the last row at this moment
            "epoch,accuracy,loss\n0,0.5,nan\n1,0.6,0.2\n2,0.",
            {"accuracy": [(0, 0.5), (1, 0.6)], "loss": [(0, "nan"), (1, 0.2)]},
        ),
        ("  epoch, train/box_loss, note\n 1, 1.5, a\nnan, 1, 2\n1e300,1,2\n", {"train/box_loss": [(1, 1.5)]}),
        ("name,price\na,1\n", {}),
        ("", {}),
        (f"epoch,loss\n0,1\n1,{'9' * 200_000}\n2,3\n", {"loss": [(0, 1)]}),
    ],
    ids=["lightning", "keras", "yolo", "no-steps", "empty", "no-csv"],
)
def test_tables_of_metrics_are_read_by_their_columns(table, lines):
    from clusters.scalars.tables import series_of

    found = {
        name: [(point.step, "nan" if math.isnan(point.value) else point.value) for point in each.all]
        for name, each in series_of(table.encode()).items()
    }
    assert found == lines


@pytest.mark.django_db
def test_a_table_beside_event_files_counts_once_and_is_read_again_when_it_has_changed(
    people, catalogue, manifest, monkeypatch
):
    Datastore.objects.create(appcode=people.ops, name="results", kind="nfs", spec={"server": "nfs", "path": "/x"})
    run = clusters.create_cluster(manifest(output="results"), acting_user=people.bob).current_run
    table = File("logs/metrics.csv", b"epoch,loss\n0,3\n")
    store = Store(File("events/a.tfevents", event(1, loss=9)), File("events/metrics.csv", b"epoch,loss\n0,9\n"), table)
    store.walk = lambda _: iter(store.files)
    monkeypatch.setattr(reading, "open_store", lambda _: store)
    assert {(each.folder, each.points[-1].value) for each in reading.scalars_of(run).curves} == {
        ("events", 9),
        ("logs", 3),
    }
    before = store.bytes_read
    assert points(reading.scalars_of(run), "loss", "logs") == [(0, 3)]
    assert store.bytes_read == before
    store.files[-1] = File(table.path, b"epoch,loss,acc\n0,3,\n1,2,0.5\n")
    assert points(reading.scalars_of(run), "loss", "logs") == [(0, 3), (1, 2)]


def test_no_line_of_a_log_takes_long_to_be_read():
    """A page reads thousands of lines."""
    import time

    from clusters.scalars.printed import scalars_of_log

    begin = time.process_time()
    scalars_of_log(
        b"\n".join(
            [
                b"step 1 a=" + b"1" * 1900 + b"x",
                b"step" + b" " * 1900 + b"x",
                b"epoch 1" + b" " * 1900 + b"x",
                b"step 1 " + b"a " * 900,
            ]
            * 20
        )
    )
    assert time.process_time() - begin < 2


def test_a_printed_number_has_the_time_of_its_line():
    from clusters.scalars.printed import scalars_of_log
    from tests.clusters.scalars.test_pace import logged

    log, marked = logged((0, "Epoch 7/9"), (1, "loss: 3.0"), (1, "step 8: loss = 2"), (2.5, "step 9: loss = 1"))
    # Read in two parts, each with the marks around it.
    found = scalars_of_log(log, marked=marked[:-SIZE] + marked[SIZE:])
    [curve] = found.curves
    assert [(point.step, point.wall_time - 1_000_000) for point in curve.points] == [(7, 1), (8, 1), (9, 2.5)]
    # Relative time counts from the start of the run, and never from later than the first number.
    assert [replace(found, started=1_000_000.0 + n).began - 1_000_000 for n in (0, 2)] == [0, 1]
    unknown = scalars_of_log(log)
    assert (unknown.curves[0].is_timed, unknown.began) == (False, 0)


@pytest.mark.django_db
def test_what_a_run_has_printed_is_parsed_once_when_it_is_gone_and_its_log_complete(
    people, catalogue, manifest, monkeypatch
):
    run = clusters.create_cluster(manifest(), acting_user=people.bob).current_run
    run.tasks.create(role="master", index=0, attempt=0, uid="a", phase="Succeeded")
    log, said, asked = b"", {"complete": True, "absent": False}, []

    def piece(*_, offset, limit, **__):
        asked.append(offset)
        return LogChunk(log[offset : offset + limit], min(len(log), offset + limit), **said)

    monkeypatch.setattr(RunLogs, "cloud", SimpleNamespace(log=piece))
    monkeypatch.setattr(RunLogs, "copies", {})
    assert reading.printed(run).curves == ()  # It goes on.
    run.phase, run.gone, said["complete"] = "Succeeded", True, False
    log = b"step 1: loss = nan\nstep 2: loss = 0.5\n"
    assert len(reading.printed(run).curves) == 1
    said["complete"], log = True, log + b"step 2: acc = 0.9\n"
    first, before = reading.printed(run), len(asked)
    assert [each.tag for each in first.curves] == ["loss", "acc"]
    second = reading.printed(run)
    assert (str(second), len(asked)) == (str(first), before)
    # A shorter beginning is another one: the cut of a log that many tasks share.
    monkeypatch.setattr(reading, "MAX_LOG", 20)
    cut = reading.printed(run)
    assert ([each.tag for each in cut.curves], len(cut.notes), len(asked)) == (["loss"], 1, before + 1)
    assert (reading.printed(run).notes, len(asked)) == (cut.notes, before + 1)


@pytest.mark.django_db
def test_who_counts_once_reads_event_files_to_their_end(people, catalogue, manifest, monkeypatch):
    monkeypatch.setattr(scalars, "CHUNK", 400)
    monkeypatch.setattr(scalars, "MAX_BYTES", 1000)
    Datastore.objects.create(appcode=people.ops, name="results", kind="nfs", spec={"server": "nfs", "path": "/x"})
    run = clusters.create_cluster(manifest(output="results"), acting_user=people.bob).current_run
    began = run.created_at.timestamp()
    file = File("a.tfevents", b"".join(event(step, at=began + step, loss=step) for step in range(1, 200)))
    monkeypatch.setattr(reading, "open_store", lambda _: Store(file))
    monkeypatch.setattr(reading, "_files", lambda *_: ([file], [], []))
    # A page continues on its next request.
    assert 0 < len(reading.told_by(run)[0].points) < 199
    cache.clear()
    with pytest.raises(DriverError):
        reading.told_by(run, 1e-9)
    (whole,) = reading.told_by(run, time.monotonic() + 60)
    assert [step for step, _ in whole.points] == list(range(1, 200))
    # Crashes are counted once the run is gone.
    assert (run.crashes, kept(run)) == ([], None)


@pytest.mark.django_db
def test_crashes_wait_for_a_log_that_is_on_its_way_to_the_archive(people, catalogue, manifest, monkeypatch):
    run = clusters.create_cluster(manifest(), acting_user=people.bob).current_run
    run.tasks.create(role="master", index=0, attempt=0, uid="a", phase="Failed", finished_at=timezone.now())
    run.tasks.create(role="master", index=0, attempt=1, uid="b", phase="Succeeded", log_state="open")
    Run.objects.filter(pk=run.pk).update(gone=True, crashes=None)
    absent = LogChunk(b"", 0, True, absent=True)
    monkeypatch.setattr(RunLogs, "cloud", SimpleNamespace(log=lambda *_, **__: absent))
    monkeypatch.setattr(RunLogs, "copies", {("master", 0, n): Copy("open") for n in (0, 1)})
    note_crashes(run.pk)
    run.refresh_from_db()
    assert kept(run) is None
    other = clusters.create_cluster(manifest("other"), acting_user=people.bob).current_run
    Run.objects.filter(pk__in=[run.pk, other.pk]).update(crashes=None, phase_since=timezone.now() - 2 * PATIENCE)
    woken = []
    monkeypatch.setattr(wakeups, "wake_crashes", woken.append)
    resync.sweep()
    [first] = woken
    note_crashes(first)
    assert not Run.objects.filter(crashes=None).exists()
    run.refresh_from_db()
    [crash] = kept(run)
    assert (crash.name, crash.repeated) == ("master-0", None)


def offline(*records: bytes) -> bytes:
    """A file as W&B writes it: a log of LevelDB, whose blocks of 32 KiB split records."""
    from clusters.scalars.wandb import BLOCK, MAGIC

    data = bytearray(MAGIC)
    for record_ in records:
        rest, is_first = record_, True
        while rest or is_first:
            room = BLOCK - len(data) % BLOCK - 7
            if room < 0:
                data += b"\0" * (room + 7)
                continue
            part, rest = rest[:room], rest[room:]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[is_first, not rest]
            data += struct.pack("<IHB", 0, len(part), kind) + part
            is_first = False
    return bytes(data)


def history(step: int, **values: str) -> bytes:
    from clusters.scalars.wandb import RECORD

    made = RECORD()
    made.history.step.num = step
    for name, text in values.items():
        names = {"nested_key": [part.encode() for part in name.split("__")]}
        made.history.item.add(value_json=text.encode(), **names)
    return bytes(made.SerializeToString())


def updates(kind: str, **values: str) -> bytes:
    from clusters.scalars.wandb import RECORD

    made = RECORD()
    part = {"config": made.config, "summary": made.summary, "run": made.run.config}[kind]
    for name, text in values.items():
        part.update.add(value_json=text.encode(), nested_key=[each.encode() for each in name.split("__")])
    return bytes(made.SerializeToString())


def test_wandbs_configuration_becomes_parameters_and_its_summary_last_values():
    from clusters.scalars.wandb import contents

    records = [
        updates("run", lr="0.1", model='{"depth": 3, "name": "a\\u0000\\ud800"}', _wandb='{"x": 1}'),
        *(history(step, loss=str(step)) for step in range(5)),
        updates("summary", loss='{"min": 0}', _runtime="7", final='{"acc": 0.9, "note": "text"}'),
        updates("summary", loss="4", final__acc="0.93"),
        updates("config", lr="0.2", layers="[1, 2]", empty="{}"),
    ]
    series, config, *_ = contents(offline(*records))
    assert {name: line.newest for name, line in series.items()} == {
        "loss": scalars.Point(4, 0.0, 4.0),
        "final.acc": scalars.Point(4, 0.0, 0.93),
    }
    assert config == {"lr": "0.2", "model.depth": "3", "model.name": "a?", "layers": "[1, 2]", "empty": "{}"}


def test_what_wandb_writes_offline_is_read_by_its_history_to_where_it_is_damaged():
    from clusters.scalars import wandb

    records = [history(n, loss=str(1 / (n + 1)), val__acc="NaN", _timestamp="7.5", note='"x"', image='{"_type": "i", "n": 1}')
               for n in range(900)]  # fmt: skip
    data = offline(b"\xff" * 5, *records, history(900, box='{"a": {"b": 2}}', huge="1" + "0" * 400, deep="[" * 99_999))
    assert len(data) > 2 * wandb.BLOCK
    found = wandb.contents(data[:-100_000]).series
    assert found.keys() == {"loss", "val.acc"}
    assert [point.step for point in found["loss"].all] == list(range(900))
    assert found["loss"].all[3] == scalars.Point(3, 7.5, 0.25)
    assert wandb.contents(offline(history(1, box='{"a": {"b": 2}}'))).series["box.a.b"].all == [
        scalars.Point(1, 0.0, 2.0)
    ]
    nothing = wandb.contents(b"no file of theirs")
    assert wandb.contents(offline(history(1, huge="1" + "0" * 400))) == nothing == ({}, {}, {}, {})
    assert wandb.is_offline("wandb/offline-run-1/run-abc.wandb")


def test_tags_are_in_the_order_in_which_people_look_for_them() -> None:
    wanted = ["loss", "acc", "layer_2", "layer_10", "lr"]
    assert sorted(["lr", "layer_10", "layer_2", "acc", "loss"], key=tag_order) == wanted


def test_wandbs_histograms_and_the_captions_of_its_images_are_read_in_the_order_of_the_log():
    from clusters.scalars import wandb

    told = wandb.contents(offline(
        history(1, weights='{"_type": "histogram", "values": [1, 3], "bins": [0, 0.5, 1]}',
                packed='{"_type": "histogram", "values": [2], "packedBins": {"min": -1, "size": 2, "count": 1}}',
                none='{"_type": "histogram", "values": 7}'),
        history(2, one='{"_type": "image-file", "path": "media/images/one_2_ab.png", "caption": "a 7"}',
                two='{"_type": "images/separated", "filenames": ["b.png", "a.png"], "captions": ["first", null], "count": 2}'),
        # W&B itself writes each part as an item of its own.
        history(3, val__three___type='"image-file"', val__three__path='"c.png"', val__three__width="28",
                val__three__caption='"c"'),
    ))  # fmt: skip
    shapes = {
        name: [(each.step, each.low, each.high, round(sum(each.counts))) for each in few.all]
        for name, few in told.histograms.items()
    }
    assert shapes == {"weights": [(1, 0, 1, 4)], "packed": [(1, -1, 1, 2)]}
    assert list(told.captions.items()) == [
        ("media/images/one_2_ab.png", "a 7"), ("b.png", "first"), ("a.png", ""), ("c.png", "c"),
    ]  # fmt: skip
    assert told.series == {}
