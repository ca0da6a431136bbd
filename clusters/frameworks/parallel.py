"""Parallel: copies of one command that know nothing of each other, as an array job has them.

Each is a worker with GPUs of its own, and finds which one it is in TASK_INDEX, from 0, and how many there are in TASK_COUNT. One
that fails ends none of the others; the run is over when each has ended, and has succeeded when all have. An input that is divided
gives each worker its part of the files. With `atOnce` they take turns: Slurm's `--array=0-499%20`, the `parallelism` of a Job.
"""

from __future__ import annotations

from collections.abc import Mapping

from clusters.frameworks.base import (
    WORKERS_DONE,
    Addresses,
    Framework,
    Launch,
    Resources,
    Role,
    Spec,
    shell,
)


class Parallel(Framework):
    name = "parallel"
    title = "Parallel"
    is_installed = False
    is_independent = True
    modes = ("batch",)
    roles = (Role("worker", "Worker", least=1),)
    completions = (WORKERS_DONE,)
    reserved_env = frozenset({"TASK_COUNT"})

    def launch(self, spec: Spec, role: str, addresses: Addresses, resources: Mapping[str, Resources]) -> Launch:
        return Launch(shell(spec.command), {"TASK_COUNT": str(spec.count(role))})
