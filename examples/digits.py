"""Handwritten digits: the data, a small network, and a training loop that every program beside this one shares.

One idea keeps the three ways of training (one machine, parameter servers, all-reduce) the same program: the weights
that are trained live wherever the strategy puts them, and the task that leads keeps a plain copy of its own. The copy
is what is tested, written to checkpoints and saved as a model, so only that task needs the output folder. A task that
is started again finds the newest checkpoint and goes on from there.

    /elearn/input/digits.npz       images (n, 64) from 0 to 16, labels (n,) from 0 to 9
    /elearn/output/checkpoints/    the newest three; the number in the name is the global step
    /elearn/output/summaries/      for TensorBoard: loss, accuracy, global_step/sec
    /elearn/output/model/          a SavedModel: images (n, 64) from 0 to 1 → probabilities (n, 10)
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# Before TensorFlow is imported, which is why programs take `tf` from here: its notes stay out of the log.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2" if Path("/dev/nvidiactl").exists() else "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import numpy as np
import tensorflow as tf

PIXELS, HIDDEN, CLASSES = 64, 128, 10
KEPT_CHECKPOINTS = 3
# Lines of the log, and points of each chart; with every fourth of them a checkpoint is written.
REPORTS = 20
# Steps that replicas in step make at once.
ROUND = 50


class Digits(NamedTuple):
    """Images as float32 from 0 to 1, labels as int64."""

    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What can be changed in the command: `python digits_ps.py --steps 5000 --learning-rate 0.05`."""
    parser = argparse.ArgumentParser(description="Trains a network on handwritten digits.")
    parser.add_argument("--input", type=Path, default=Path("/elearn/input"), help="the folder with digits.npz")
    parser.add_argument("--sample", action="store_true", help="use the digits that scikit-learn brings, not the input")
    parser.add_argument("--output", type=Path, default=Path("/elearn/output"), help="where results go")
    parser.add_argument("--steps", type=int, default=1500, help="training steps of all workers together")
    parser.add_argument("--batch", type=int, default=64, help="images in one step of one worker")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    return parser.parse_args(argv)


def prepare() -> None:
    """Settings of TensorFlow for small models: to be called once, before anything else of it."""
    # Many tasks share a machine: a thread for every core in each of them only makes them wait for each other.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, enable=True)


def load(args: argparse.Namespace) -> Digits:
    """Reads digits.npz of the input, or the sample. Every fifth image is kept for testing."""
    if args.sample:
        images, labels = sample()
    else:
        with np.load(args.input / "digits.npz") as file:
            images, labels = file["images"], file["labels"]
    images, labels = (images / 16.0).astype(np.float32), labels.astype(np.int64)
    test = np.arange(len(labels)) % 5 == 0
    return Digits(images[~test], labels[~test], images[test], labels[test])


def sample() -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's handwritten digits, from its own file: importing scikit-learn would take seconds."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("This image has no scikit-learn, whose digits --sample uses; name an input instead.")
    with gzip.open(Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    return rows[:, :-1], rows[:, -1]


def batches(digits: Digits, batch: int, seed: int | None = None) -> tf.data.Dataset:
    """Endless shuffled batches.

    The digits are small enough to travel inside the graph; each worker would read a larger data set from /elearn/input.
    """
    data = tf.data.Dataset.from_tensor_slices((digits.images, digits.labels))
    return data.shuffle(len(digits.labels), seed=seed).repeat().batch(batch).prefetch(2)


class Network(tf.Module):
    """Two dense layers, and the number of training steps that they have seen.

    `values` are the start values in the order of `weights` followed by the step; without them the start is random.
    """

    def __init__(self, values: Sequence[Any] | None = None) -> None:
        super().__init__()
        if values is None:
            random = np.random.default_rng(7)
            shapes = [(PIXELS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,)]
            values = [random.normal(0, np.sqrt(2 / shape[0]) * (len(shape) > 1), shape) for shape in shapes] + [0]
        # Replicas in step (GPUs, machines) all ask for the same update, see `train`: the first one's is taken.
        once = tf.VariableAggregation.ONLY_FIRST_REPLICA
        self.weights = [tf.Variable(tf.cast(value, tf.float32), aggregation=once) for value in values[:-1]]
        self.step = tf.Variable(tf.cast(values[-1], tf.int64), trainable=False, aggregation=once)

    def logits(self, images: tf.Tensor) -> tf.Tensor:
        first, first_bias, second, second_bias = (tf.convert_to_tensor(weight) for weight in self.weights)
        return tf.nn.relu(images @ first + first_bias) @ second + second_bias

    def loss(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Mean cross-entropy over the images of this replica."""
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, self.logits(images)))

    def train(self, images: tf.Tensor, labels: tf.Tensor, learning_rate: float) -> tf.Tensor:
        """One step of stochastic gradient descent on one replica; returns its loss."""
        with tf.GradientTape() as tape:
            loss = self.loss(images, labels)
        # The mean over the replicas that are in step; where there is only one, its own.
        gradients = tf.distribute.get_replica_context().all_reduce("mean", tape.gradient(loss, self.weights))
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.assign_sub(learning_rate * gradient)
        self.step.assign_add(1)
        return loss

    @tf.function(input_signature=[tf.TensorSpec((None, PIXELS), tf.float32, name="images")])
    def probabilities(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"probabilities": tf.nn.softmax(self.logits(images))}

    @property
    def steps(self) -> int:
        return int(tf.convert_to_tensor(self.step))

    @property
    def values(self) -> list[tf.Tensor]:
        return [tf.convert_to_tensor(variable) for variable in (*self.weights, self.step)]

    def copy_from(self, other: Network) -> None:
        for mine, value in zip((*self.weights, self.step), other.values, strict=True):
            mine.assign(value)


class Lead:
    """What only the task that leads does: find the last checkpoint, report progress, save the result.

    `network` is its own copy. Build the trained network from `lead.network.values`, then call `follow` with it.
    """

    def __init__(self, digits: Digits, output: Path, steps: int) -> None:
        self.digits, self.output, self.steps = digits, output, steps
        self.network = Network()
        self.manager = tf.train.CheckpointManager(
            tf.train.Checkpoint(network=self.network), str(output / "checkpoints"), KEPT_CHECKPOINTS
        )
        if self.manager.restore_or_initialize():
            print(f"Continues after step {self.network.steps} from {self.manager.latest_checkpoint}", flush=True)
        self.writer = tf.summary.create_file_writer(str(output / "summaries"))

    def follow(self, trained: Network, advance: Callable[[], None]) -> None:
        """Calls `advance` (which makes some steps) until the steps are done, reports on the way, saves at the end."""
        step, since, reports = self.network.steps, time.monotonic(), 0
        while step < self.steps:
            advance()
            done = trained.steps - step
            if done < self.steps // REPORTS and step + done < self.steps:
                continue
            self.network.copy_from(trained)
            self.report(done / (time.monotonic() - since))
            step, since, reports = step + done, time.monotonic(), reports + 1
            if reports % 4 == 0 and step < self.steps:
                self.manager.save(checkpoint_number=step)
        self.save()

    def report(self, speed: float) -> None:
        """One line of the log and one point of each chart."""
        step = self.network.steps
        loss, accuracy = test(self.network, self.digits)
        print(f"step {step}: loss = {loss:.4f}, accuracy = {accuracy:.4f}, global_step/sec: {speed:.4f}", flush=True)
        with self.writer.as_default(step=step):
            tf.summary.scalar("loss", loss)
            tf.summary.scalar("accuracy", accuracy)
            tf.summary.scalar("global_step/sec", speed)
        self.writer.flush()

    def save(self) -> None:
        self.manager.save(checkpoint_number=self.network.steps)
        model = self.output / "model"
        tf.saved_model.save(self.network, str(model), signatures=self.network.probabilities)
        self.writer.close()
        print(f"Saved the model of step {self.network.steps} in {model}", flush=True)


def in_step(
    strategy: tf.distribute.Strategy, network: Network, data: tf.data.Dataset, args: argparse.Namespace
) -> Callable[[], None]:
    """A function that makes a round of steps with all replicas of `strategy` in step; they share each batch of `data`."""
    iterator = iter(strategy.experimental_distribute_dataset(data))

    @tf.function
    def some(count: tf.Tensor) -> None:
        for _ in tf.range(count):
            strategy.run(network.train, args=(*next(iterator), args.learning_rate))

    def advance() -> None:
        some(tf.constant(min(ROUND, args.steps - network.steps)))

    return advance


def test(network: Network, digits: Digits) -> tuple[float, float]:
    """Loss, and the share of images recognised, over the images kept for testing."""
    logits = network.logits(tf.constant(digits.test_images))
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(digits.test_labels, logits)
    right = tf.argmax(logits, axis=1) == digits.test_labels
    return float(tf.reduce_mean(loss)), float(tf.reduce_mean(tf.cast(right, tf.float32)))


def evaluate(args: argparse.Namespace) -> None:
    """The evaluator's program: tests every checkpoint that appears, until that of the last step.

    It reads what the master writes, so it needs an output folder that tasks share, as on one machine or on NFS.
    """
    digits, network = load(args), Network()
    checkpoint = tf.train.Checkpoint(network=network)
    writer = tf.summary.create_file_writer(str(args.output / "summaries" / "evaluator"))
    for path in _checkpoints(args.output / "checkpoints"):
        checkpoint.restore(path).expect_partial()
        step = network.steps
        loss, accuracy = test(network, digits)
        print(f"step {step}: loss = {loss:.4f}, accuracy = {accuracy:.4f}", flush=True)
        with writer.as_default(step=step):
            tf.summary.scalar("loss", loss)
            tf.summary.scalar("accuracy", accuracy)
        writer.flush()
        if step >= args.steps:
            return


def _checkpoints(folder: Path) -> Iterator[str]:
    folder.mkdir(parents=True, exist_ok=True)
    return iter(tf.train.checkpoints_iterator(str(folder), min_interval_secs=0.5))
