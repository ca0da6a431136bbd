"""Trains with parameter servers: `python digits_ps.py`, with a master, at least one parameter server and some
workers.

Parameter servers hold the weights, workers compute on their own batches and update the weights whenever they are
ready, without waiting for each other (ParameterServerStrategy). Both only start a server and wait for work; the
master hands out the steps by a ClusterCoordinator, reports and saves. The addresses come from TF_CONFIG. A worker
that is started again takes part again; when a parameter server is lost the master fails, and continues at the last
checkpoint when it is started again.
"""

from __future__ import annotations

import argparse
import os
import warnings

import digits
from digits import tf

# Steps handed out at once to each worker; then the master looks how far they are.
ROUND = 25


def main() -> None:
    args = digits.options()
    digits.prepare()
    # A worker that is gone is reported at once, not waited for.
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type == "evaluator":
        digits.evaluate(args)
    elif resolver.task_type in ("ps", "worker"):
        serve(resolver)
    else:
        coordinate(resolver, args)


def serve(resolver: tf.distribute.cluster_resolver.TFConfigClusterResolver) -> None:
    """Parameter servers and workers: does what the master asks for, until the run ends."""
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc", start=True
    )
    print(f"{resolver.task_type} {resolver.task_id} serves", flush=True)
    server.join()


def coordinate(resolver: tf.distribute.cluster_resolver.TFConfigClusterResolver, args: argparse.Namespace) -> None:
    """The master: waits for the others, hands out steps, reports and saves."""
    # Nothing that its reader could change.
    warnings.filterwarnings("ignore", message="To make it possible to preserve tf.data options")
    data = digits.load(args)
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    workers = resolver.cluster_spec().num_tasks("worker")
    print(f"The master found {workers} worker{'s'[: workers != 1]}", flush=True)
    lead = digits.Lead(data, args.output, args.steps)
    with strategy.scope():
        network = digits.Network(lead.network.values)

    def dataset() -> tf.data.Dataset:
        return strategy.experimental_distribute_dataset(digits.batches(data, args.batch))

    per_worker = iter(coordinator.create_per_worker_dataset(dataset))

    @tf.function
    def step(iterator: tf.data.Iterator) -> None:
        strategy.run(network.train, args=(*next(iterator), args.learning_rate))

    def advance() -> None:
        left = args.steps - network.steps
        for _ in range(min(ROUND * workers, left)):
            coordinator.schedule(step, args=(per_worker,))
        coordinator.join()

    lead.follow(network, advance)


if __name__ == "__main__":
    main()
