"""Images and tables among the files of an output: names of loggers and of tutorials, and that none is shown twice or lost."""

from __future__ import annotations

import datetime as dt

from hypothesis import given
from hypothesis import strategies as st

from clusters.scalars.files import UNKNOWN, images_among, tables_among
from clusters.scalars.media import MAX_STEPS
from datastores.drivers.base import Entry

HASH = "54d52464c4f413b39e88"
RUN = "out/wandb/offline-run-20261201_113203-cfs54ghq"
AT = dt.datetime(2026, 3, 4, tzinfo=dt.UTC)


def entries(*paths: str, size: int = 100) -> list[Entry]:
    return [Entry(path.rpartition("/")[2], path, size=size, modified=AT) for path in paths]


def images(*paths: str, captions: dict[str, str] | None = None) -> dict[tuple[str, str, int], list[int]]:
    """{(folder, tag, which): [step, …]}"""
    found, _ = images_among(entries(*paths), captions or {})
    return {(line.folder, line.tag, line.which): [each.step for each in line.points] for line in found}


def test_images_that_loggers_save_have_their_names_and_steps():
    media = f"{RUN}/files/media/images"
    several = f"{media}/val/samples_2_{HASH}.png", f"{media}/val/samples_2_{HASH[::-1]}.png"
    assert images(f"{media}/x_y_1_{HASH}.png", f"{media}/x_y_20_{HASH}.jpg", *several) == {
        ("out", "x_y", 0): [1, 20], ("out", "val/samples", 1): [2], ("out", "val/samples", 2): [2],
    }  # fmt: skip
    found, _ = images_among(entries(*several), {several[1]: "cat", several[0]: ""})
    assert [(line.which, line.points[0].image.caption) for line in found] == [(1, "cat"), (2, "")]
    tail = "timestamp+1700000000000+2c4d"
    assert images(
        f"mlflow/ab/images/val~faces+step+3+{tail}.png", f"mlflow/ab/images/val~faces+step+3+{tail}+compressed.webp",
        "mlflow/ab/images/old%step%10%timestamp%1%x.png", "mlflow/ab/images/old%step%9%timestamp%1%x.png",
    ) == {("mlflow/ab", "val/faces", 0): [3], ("mlflow/ab", "old", 0): [9, 10]}  # fmt: skip


def test_images_of_tutorials_are_series_by_their_last_number():
    # TensorFlow's DCGAN, PyTorch's VAE and DCGAN, and a program that numbers in another place.
    assert images(
        "image_at_epoch_0001.png", "image_at_epoch_0002.png", "image_at_epoch_0010.png",
        "results/sample_1.png", "results/sample_2.png",
        "a/epoch_3_step_100.PNG", "a/epoch_3_step_200.PNG", "b/001.jpg", "b/002.jpg", "c/9-fake.gif", "c/10-fake.gif",
    ) == {
        ("", "image_at_epoch", 0): [1, 2, 10], ("results", "sample", 0): [1, 2], ("a", "epoch_3_step", 0): [100, 200],
        ("b", "b", 0): [1, 2], ("c", "-fake", 0): [9, 10],
    }  # fmt: skip
    # A number that no other file of its kind has is a part of the name.
    assert images("resnet50.png", "confusion matrix.png") == {
        ("", "resnet50.png", 0): [UNKNOWN], ("", "confusion matrix.png", 0): [UNKNOWN],
    }  # fmt: skip


def test_large_images_are_counted_and_other_files_are_none():
    assert images_among(entries("big.png", size=2**21), {}) == ([], 1)
    assert images_among(entries("model.h5", "page.svg", "readme.md", "png"), {}) == ([], 0)


def test_tables_are_those_of_loggers_and_of_programs():
    run = "0" * 32
    paths = (
        f"{RUN}/files/media/table/preds_2_{HASH}.table.json", f"{RUN}/files/media/table/preds_10_{HASH}.table.json",
        f"mlflow/{run}/eval/wrong.json", f"mlflow/{run}/config.json", "config.json", "test/submission.csv",
    )  # fmt: skip
    found = tables_among(entries(*paths), {f"{run}/eval/wrong.json"})
    assert [(line.folder, line.tag, [each.step for each in line.points]) for line in found] == [
        ("out", "preds", [2, 10]), (f"mlflow/{run}/eval", "wrong.json", [UNKNOWN]), ("test", "submission.csv", [UNKNOWN]),
    ]  # fmt: skip


NAME = st.from_regex(
    r"([a-b]/){0,2}[a-b+%~_-]{0,3}[0-9]{0,3}(_step_[0-9]|_[0-9a-f]{20})?[a-b]?\.(png|jpg|webp)", fullmatch=True
)


@given(st.lists(NAME, unique=True, max_size=20))
def test_each_image_is_shown_once_in_an_order_that_does_not_depend_on_the_listing(paths: list[str]):
    found, left_out = images_among(entries(*paths), {})
    shown = [each.path for line in found for each in line.points]
    assert sorted(shown) == sorted(paths) if len(paths) < 2 * MAX_STEPS else len(shown) == len(set(shown))
    assert (found, left_out) == images_among(entries(*reversed(paths)), {})
    assert all([each.step for each in line.points] == sorted(each.step for each in line.points) for line in found)
