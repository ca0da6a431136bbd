"""Parallel: copies of one command that know nothing of each other, as an array job has them.

Each is a worker with GPUs of its own, and finds which one it is in TASK_INDEX, from 0, and how many there are in TASK_COUNT. One
that fails ends none of the others; the run is over when each has ended, and has succeeded when all have. An input that is divided
gives each worker its part of the files. With `atOnce` they take turns: Slurm's `--array=0-499%20`, the `parallelism` of a Job.

A long command is written once per run: in each of a thousand pods it would be most of what the control plane keeps and sends.
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

# The variable that has a command of more characters than that.
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
