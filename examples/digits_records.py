"""Writes the digits as records of TensorFlow: `python digits_records.py`, with a master and nothing else.

Each record is a `tf.train.Example` with `image` (64 floats from 0 to 1) and `label` (one integer from 0 to 9). They
lie in several files, so that several workers can read a part each; `read` is how a program gets batches of them.

    /elearn/output/digits.tfrecord-00000-of-00002, …
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import digits
from digits import tf

FEATURES = {"image": tf.io.FixedLenFeature([digits.PIXELS], tf.float32), "label": tf.io.FixedLenFeature([], tf.int64)}


def write(folder: Path, parts: int) -> int:
    """Returns how many records it has written."""
    images, labels = digits.sample()
    for part in range(parts):
        with tf.io.TFRecordWriter(str(folder / f"digits.tfrecord-{part:05}-of-{parts:05}")) as file:
            for image, label in zip(images[part::parts] / 16, labels[part::parts], strict=True):
                features = {
                    "image": tf.train.Feature(float_list=tf.train.FloatList(value=image)),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)])),
                }
                file.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    return len(labels)


def read(folder: Path, batch: int) -> tf.data.Dataset:
    """Batches of {"image": (n, 64) float32, "label": (n,) int64} of all files of a folder."""
    files = tf.data.Dataset.list_files(str(folder / "*.tfrecord*"), shuffle=False)
    records = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
    return records.batch(batch).map(lambda rows: tf.io.parse_example(rows, FEATURES))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Writes the digits of scikit-learn as records of TensorFlow.")
    parser.add_argument("--output", type=Path, default=Path("/elearn/output"), help="where the files go")
    parser.add_argument("--parts", type=int, default=2, help="how many files")
    args = parser.parse_args(argv)
    written = write(args.output, args.parts)
    found = sum(len(rows["label"]) for rows in read(args.output, 256))
    print(f"{written} records written, {found} read again", flush=True)


if __name__ == "__main__":
    main()
