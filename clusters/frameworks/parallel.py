"""Parallel: independent copies of one command, like an array job.

Each copy is a worker with its own GPUs and finds its index, from 0, in TASK_INDEX and the number of copies in TASK_COUNT. A
failed copy does not end the others; the run is over when each has ended, and has succeeded if all have. A divided input gives
each worker its part of the files. `atOnce` limits concurrency, like Slurm's `--array=0-499%20` or the `parallelism` of a Job.

A long command is written once per run: repeated in a thousand pods, it would be most of what the control plane stores and sends.
"""

from __future__ import annotations

from collections.abc import Mapping

from clusters.frameworks.base import (
    SHELL,
    WORKERS_DONE,
    Addresses,
    Framework,
    Launch,
    Resources,
    Role,
    Spec,
    shell,
)

# Commands of more than LONG characters are passed in the shared variable COMMAND.
COMMAND, LONG = "TASK_COMMAND", 2048


class Parallel(Framework):
    name = "parallel"
    title = "Parallel"
    is_installed = False
    is_independent = True
    modes = ("batch",)
    roles = (Role("worker", "Worker", least=1),)
    completions = (WORKERS_DONE,)
    reserved_env = frozenset({"TASK_COUNT", COMMAND})

    def shared(self, spec: Spec, addresses: Addresses) -> Mapping[str, str]:
        return {COMMAND: spec.command} if len(spec.command) > LONG else {}

    def launch(self, spec: Spec, role: str, addresses: Addresses, resources: Mapping[str, Resources]) -> Launch:
        command = spec.command
        if len(command) > LONG:
            command = f'exec env -u {COMMAND} {" ".join(SHELL)} "${COMMAND}"'
        return Launch(shell(command), {"TASK_COUNT": str(spec.count(role))})
