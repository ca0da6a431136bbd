"""Trains on several machines in step: `python digits_allreduce.py`, with a master and workers of the same flavor.

The master is a worker too. Every one holds all weights and computes on its own batch; their updates are averaged by
an all-reduce in each step, so that all copies stay equal (MultiWorkerMirroredStrategy). The addresses come from
TF_CONFIG. When one of them ends, the others cannot go on and end as well; all are started again and continue at the
last checkpoint.
"""

from __future__ import annotations

import digits
from digits import tf


def main() -> None:
    args = digits.options()
    digits.prepare()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type == "evaluator":
        digits.evaluate(args)
        return
    strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    data = digits.load(args)
    # The first values of a variable are those of the master: only its checkpoint counts.
    leads = resolver.task_type in ("chief", None, "")
    lead = digits.Lead(data, args.output, args.steps) if leads else None
    with strategy.scope():
        network = digits.Network(lead.network.values if lead else None)
    print(f"{resolver.task_type} {resolver.task_id}: {strategy.num_replicas_in_sync} replicas in step", flush=True)
    # Each shuffles in its own way, so that their batches differ.
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    mine = digits.batches(data, args.batch * strategy.num_replicas_in_sync).with_options(options)
    advance = digits.in_step(strategy, network, mine, args)
    if lead:
        lead.follow(network, advance)
        return
    while network.steps < args.steps:
        advance()


if __name__ == "__main__":
    main()
