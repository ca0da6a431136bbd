"""Trains on one machine: `python digits_single.py`, with a master and nothing else. Uses every GPU that the task has.

With several GPUs each of them works on its own part of a batch and their updates are averaged (MirroredStrategy);
with one GPU or none there is nothing to distribute. No TF_CONFIG is needed.
"""

from __future__ import annotations

import digits
from digits import tf


def main() -> None:
    args = digits.options()
    digits.prepare()
    gpus = tf.config.list_logical_devices("GPU")
    strategy = tf.distribute.MirroredStrategy() if len(gpus) > 1 else tf.distribute.get_strategy()
    data = digits.load(args)
    lead = digits.Lead(data, args.output, args.steps)
    with strategy.scope():
        network = digits.Network(lead.network.values)
    print(f"{len(gpus)} GPUs, {strategy.num_replicas_in_sync} replicas in step", flush=True)
    everything = digits.batches(data, args.batch * strategy.num_replicas_in_sync)
    lead.follow(network, digits.in_step(strategy, network, everything, args))


if __name__ == "__main__":
    main()
