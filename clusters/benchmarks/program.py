"""The program of every task of a measurement. It is self-contained, because images do not have our modules.

The idea: the rate is measured without clocks inside the steps. Where the time goes is measured afterwards, in separate steps
with clocks between reading the batch, having the weights, having the gradients and having updated the weights. All times are
taken in the graph, on the machine that does the work. The leading task prints the result as one line: `benchmark {…}`.

    input           until the batch is there
    compute         from there to the gradients, without the time for fetching weights
    communication   weights from parameter servers and gradients to them; or the all-reduce, including the wait for the slowest
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Set before TensorFlow is imported, to keep its messages out of the log.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

# Hides Keras, which TensorFlow loads when it is imported: a third of the time until a task starts.
sys.modules["keras"] = None  # type: ignore[assignment]
import tensorflow as tf  # noqa: E402

del sys.modules["keras"]

PIXELS, CLASSES = 64, 10
# Number of windows of steps; their median is the rate.
WINDOWS = 10
# Number of steps with clocks.
TIMED = 30
PARTS = ("input", "compute", "communication")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures how fast a TensorFlow cluster trains.")
    parser.add_argument("--strategy", choices=("parameter-server", "all-reduce"), required=True)
    parser.add_argument("--data", choices=("synthetic", "digits"), required=True)
    parser.add_argument("--steps", type=int, required=True, help="measured steps of each worker")
    parser.add_argument("--batch", type=int, required=True, help="examples in one step of one replica")
    parser.add_argument("--width", type=int, required=True, help="units of both hidden layers")
    parser.add_argument("--threads", type=int, required=True, help="cores of a task")
    return parser.parse_args()


class Network(tf.Module):
    """Three dense layers: 64 pixels, twice `width` units, 10 classes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        random = np.random.default_rng(7)
        shapes = [(PIXELS, width), (width,), (width, width), (width,), (width, CLASSES), (CLASSES,)]
        once = tf.VariableAggregation.ONLY_FIRST_REPLICA
        self.weights = [
            tf.Variable(
                tf.cast(random.normal(0, np.sqrt(2 / shape[0]) * (len(shape) > 1), shape), tf.float32), aggregation=once
            )
            for shape in shapes
        ]

    def read(self) -> list[tf.Tensor]:
        return [tf.convert_to_tensor(weight) for weight in self.weights]

    @staticmethod
    def gradients(weights: list[tf.Tensor], images: tf.Tensor, labels: tf.Tensor) -> list[tf.Tensor]:
        """Gradients of the batch's mean cross-entropy."""
        with tf.GradientTape() as tape:
            tape.watch(weights)
            first, first_bias, second, second_bias, third, third_bias = weights
            hidden = tf.nn.relu(tf.nn.relu(images @ first + first_bias) @ second + second_bias)
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, hidden @ third + third_bias)
            mean = tf.reduce_mean(loss)
        return tape.gradient(mean, weights)

    def update(self, gradients: list[tf.Tensor]) -> list[Any]:
        """Applies the mean over the replicas in sync; with a single one, its own gradients."""
        mean = tf.distribute.get_replica_context().all_reduce("mean", gradients)
        return [weight.assign_sub(0.01 * each) for weight, each in zip(self.weights, mean, strict=True)]

    def step(self, images: tf.Tensor, labels: tf.Tensor) -> None:
        self.update(self.gradients(self.read(), images, labels))

    def timed(self, images: tf.Tensor, labels: tf.Tensor, began: tf.Tensor) -> tf.Tensor:
        """`step` with clocks. Returns the seconds of input, compute and communication."""
        given = clock([tf.cast(images, tf.float32)])
        with tf.control_dependencies([given]):
            weights = self.read()
        read = clock(weights)
        with tf.control_dependencies([read]):
            gradients = self.gradients([tf.identity(weight) for weight in weights], images, labels)
        computed = clock(gradients)
        with tf.control_dependencies([computed]):
            changed = self.update(gradients)
        with tf.control_dependencies(changed):
            after = clock(self.read()[-1:])
        return tf.stack([given - began, computed - read, (read - given) + (after - computed)])


def clock(values: list[tf.Tensor]) -> tf.Tensor:
    """The time in seconds at which all of `values` are there. Fetches one number of each, because operations on a GPU seem to
    end when they are only queued, and because a value on another machine has to be transferred."""
    some = tf.add_n([tf.reshape(value, [-1])[0] for value in values])
    with tf.device("/device:CPU:0"):
        there = some * 1.0
        with tf.control_dependencies([there]):
            return tf.timestamp()


def dataset(args: argparse.Namespace, seed: int | None = None) -> tf.data.Dataset:
    """Endless batches: digits through a typical pipeline, or always the same batch, which costs nothing to read."""
    if args.data == "synthetic":
        random = np.random.default_rng(7)
        images = random.random((args.batch, PIXELS), dtype=np.float32)
        return tf.data.Dataset.from_tensors((images, random.integers(0, CLASSES, args.batch))).repeat()
    images, labels = digits()
    rows = tf.data.Dataset.from_tensor_slices((images, labels))
    return rows.shuffle(len(labels), seed=seed).repeat().batch(args.batch, drop_remainder=True).prefetch(2)


@tf.autograph.experimental.do_not_convert
def digits() -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's handwritten digits, read from its file, since importing scikit-learn would take seconds."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("This image has no scikit-learn, whose digits are measured with; leave out the data “digits”.")
    with gzip.open(Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    return (rows[:, :-1] / 16.0).astype(np.float32), rows[:, -1].astype(np.int64)


def main() -> None:
    args = options()
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, enable=True)
    if args.strategy == "all-reduce":
        in_step(args)
        return
    # Report a worker that is gone at once instead of waiting for it.
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("ps", "worker"):
        server = tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol="grpc",
            start=True,
        )
        print(f"{resolver.task_type} {resolver.task_id} serves", flush=True)
        server.join()
    coordinate(resolver, args)


def in_step(args: argparse.Namespace) -> None:
    """All-reduce: every task computes, and all update their copies of the weights in step."""
    config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    tasks = sum(len(config.get("cluster", {}).get(job, ())) for job in ("chief", "worker")) or 1
    task = config.get("task", {"type": "chief", "index": 0})
    # The chief has rank 0, as in TF_CONFIG.
    rank = int(task["index"]) + (task["type"] != "chief")
    if tasks > 1:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    elif len(tf.config.list_logical_devices("GPU")) > 1:
        strategy = tf.distribute.MirroredStrategy()
    else:
        strategy = tf.distribute.get_strategy()
    with strategy.scope():
        network = Network(args.width)
    batches = iter(strategy.distribute_datasets_from_function(lambda _: dataset(args, rank)))
    replicas = strategy.num_replicas_in_sync
    print(f"{task['type']} {task['index']}: {replicas} replicas in step", flush=True)

    @tf.function
    def some(count: tf.Tensor) -> None:
        for _ in tf.range(count):
            strategy.run(network.step, args=next(batches))

    @tf.function
    def timed(count: tf.Tensor) -> tf.Tensor:
        taken = tf.TensorArray(tf.float64, size=count, element_shape=(3,))
        for step in tf.range(count):
            began = tf.timestamp()
            with tf.control_dependencies([began]):
                images, labels = next(batches)
            parts = strategy.run(network.timed, args=(images, labels, began))
            mine = strategy.experimental_local_results(parts)
            taken = taken.write(step, tf.add_n(list(mine)) / len(mine))
        return taken.stack()

    @tf.function
    def gathered(rows: tf.Tensor) -> tf.Tensor:
        def sums(each: tf.Tensor) -> tf.Tensor:
            # A tensor made here is on the replica's device, which the all-reduce requires.
            return tf.distribute.get_replica_context().all_reduce("sum", tf.identity(each))

        return strategy.experimental_local_results(strategy.run(sums, args=(rows,)))[0] * tasks / replicas

    def advance(steps: int) -> None:
        some(tf.constant(steps))

    windows = rates(advance, args.steps, 1, replicas * args.batch, leads=rank == 0)
    timed(tf.constant(2))
    own = median(timed(tf.constant(TIMED)))
    rows = np.zeros((tasks, 3))
    rows[rank] = own
    workers = gathered(tf.constant(rows)).numpy().tolist()
    if rank == 0:
        tell(windows, workers, replicas, args)


def coordinate(resolver: Any, args: argparse.Namespace) -> None:
    """Parameter servers: the chief schedules steps, and workers make them without waiting for each other."""
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    tasks = resolver.cluster_spec().num_tasks("worker")
    print(f"The master found {tasks} worker{'s'[: tasks != 1]}", flush=True)
    with strategy.scope():
        network = Network(args.width)

    def batches_of_a_worker() -> tf.data.Dataset:
        return strategy.distribute_datasets_from_function(lambda _: dataset(args))

    per_worker = iter(coordinator.create_per_worker_dataset(batches_of_a_worker))

    @tf.function
    def step(batches: Iterator[Any]) -> None:
        strategy.run(network.step, args=next(batches))

    def advance(steps: int) -> None:
        for _ in range(steps * tasks):
            coordinator.schedule(step, args=(per_worker,))
        coordinator.join()

    replicas = strategy.num_replicas_in_sync
    windows = rates(advance, args.steps, tasks, replicas * args.batch, leads=True)
    workers = all_at_once([timed_at(network, args, task) for task in range(tasks)])
    tell(windows, workers, replicas * tasks, args)


def timed_at(network: Network, args: argparse.Namespace, task: int) -> Callable[[], list[float]]:
    """A function that makes the steps with clocks on one worker, on its first GPU if it has one."""
    there = f"/job:worker/replica:0/task:{task}/device:"
    gpus = [each for each in tf.config.list_logical_devices("GPU") if each.name.startswith(there)]
    device = gpus[0].name if gpus else f"{there}CPU:0"

    @tf.function
    def timed(batches: Iterator[Any], count: tf.Tensor) -> tf.Tensor:
        taken = tf.TensorArray(tf.float64, size=count, element_shape=(3,))
        for step in tf.range(count):
            with tf.device(f"{there}CPU:0"):
                began = tf.timestamp()
                with tf.control_dependencies([began]):
                    images, labels = next(batches)
            taken = taken.write(step, network.timed(images, labels, began))
        return taken.stack()

    def run() -> list[float]:
        with tf.device(f"{there}CPU:0"):
            batches = iter(dataset(args))
        with tf.device(device):
            timed(batches, tf.constant(2))
            return median(timed(batches, tf.constant(TIMED)))

    return run


def all_at_once(calls: list[Callable[[], list[float]]]) -> list[list[float]]:
    """Calls all of them concurrently. Returns their results in order."""
    found: list[list[float]] = [[] for _ in calls]

    def call(place: int) -> None:
        found[place] = calls[place]()

    threads = [threading.Thread(target=call, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not all(found):
        raise SystemExit("A worker could not be timed; what it said stands above.")
    return found


def rates(advance: Callable[[int], None], steps: int, workers: int, batch: int, *, leads: bool) -> list[float]:
    """global_step/sec of each window, after a tenth of the steps as warm-up. `workers` count their steps separately."""
    window = max(steps // WINDOWS, 1)
    advance(max(window, 10))
    found = []
    for number in range(1, WINDOWS + 1):
        began = time.monotonic()
        advance(window)
        found.append(window * workers / (time.monotonic() - began))
        if leads:
            print(
                f"step {number * window * workers}: global_step/sec = {found[-1]:.4f}, "
                f"examples/sec = {found[-1] * batch:.2f}",
                flush=True,
            )
    return found


def median(taken: tf.Tensor) -> list[float]:
    """Medians of the columns of seconds."""
    return [float(each) for each in np.median(taken.numpy(), axis=0)]


def tell(windows: list[float], workers: list[list[float]], replicas: int, args: argparse.Namespace) -> None:
    rate = statistics.median(windows)
    in_step = 1 if args.strategy == "parameter-server" else replicas
    gpus = tf.config.list_physical_devices("GPU")
    details = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
    told = {
        "global_step_per_second": rate,
        # With parameter servers a step is one worker's, with that worker's replicas.
        "examples_per_second": rate * args.batch * (in_step if in_step > 1 else replicas // len(workers)),
        "spread": (max(windows) - min(windows)) / rate,
        "replicas": replicas,
        "tensorflow": tf.__version__,
        "device": str(details.get("device_name", "GPU" if gpus else "CPU")),
        "workers": [{part: round(each, 7) for part, each in zip(PARTS, row, strict=True)} for row in workers],
    }
    print(f"benchmark {json.dumps(told)}", flush=True)


if __name__ == "__main__":
    main()
