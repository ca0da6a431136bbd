"""Predicts a batch with a version of a model: `python digits_predict.py`, with a master, `model` and nothing else.

The version that the manifest names lies at /elearn/model, a SavedModel: images (n, 64) from 0 to 1 → probabilities
(n, 10). It names each of the 1,797 digits that scikit-learn brings; data of one's own would come as input. The files
are written beside and then moved, so a task that is started again leaves no half of them.

    /elearn/output/predictions.csv   image, label, predicted, probability of that
    /elearn/output/accuracy.json     {"model": "digits/3", "images": 1797, "accuracy": 0.98}
"""

from __future__ import annotations

import argparse
import csv
import json
import os
from collections.abc import Sequence
from pathlib import Path

import digits
import numpy as np
from digits import tf


def predict(model: Path, images: np.ndarray, batch: int) -> np.ndarray:
    """Probabilities (n, 10) of images (n, 64) from 0 to 1, so many at a time as fit into the memory of the task."""
    # What was loaded goes with this object, so it is kept while its signature is used.
    loaded = tf.saved_model.load(str(model))
    serve = loaded.signatures["serving_default"]
    parts = [tf.constant(images[start : start + batch], tf.float32) for start in range(0, len(images), batch)]
    return np.concatenate([serve(images=part)["probabilities"].numpy() for part in parts])


def write(output: Path, labels: np.ndarray, probabilities: np.ndarray, model: str) -> float:
    """Returns the share that was recognised."""
    predicted = probabilities.argmax(axis=1)
    accuracy = float((predicted == labels).mean())
    with _moved(output / "predictions.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "label", "predicted", "probability"])
        for image, (label, digit) in enumerate(zip(labels, predicted, strict=True)):
            rows.writerow([image, label, digit, f"{probabilities[image, digit]:.4f}"])
    _moved(output / "accuracy.json").write_text(
        json.dumps({"model": model, "images": len(labels), "accuracy": accuracy}) + "\n"
    )
    for name in ("predictions.csv", "accuracy.json"):
        _moved(output / name).replace(output / name)
    return accuracy


def _moved(path: Path) -> Path:
    """Where a file is written before it lies at `path`."""
    return path.with_name(f"{path.name}.new")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Names the digits of scikit-learn by a version of a model.")
    parser.add_argument("--model", type=Path, default=Path(os.environ.get("PORTAL_MODEL", "/elearn/model")))
    parser.add_argument("--output", type=Path, default=Path("/elearn/output"), help="where the files go")
    parser.add_argument("--batch", type=int, default=256, help="images at a time")
    args = parser.parse_args(argv)
    if not (args.model / "saved_model.pb").is_file():
        raise SystemExit(f"No SavedModel lies in {args.model}: give the cluster a model, for example digits@champion.")
    digits.prepare()
    images, labels = digits.sample()
    name, number = (os.environ.get(f"PORTAL_MODEL_{what}", "") for what in ("NAME", "VERSION"))
    model = f"{name}/{number}" if name else str(args.model)
    accuracy = write(args.output, labels, predict(args.model, images / 16.0, args.batch), model)
    print(f"{model} named {len(labels)} digits: accuracy = {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
