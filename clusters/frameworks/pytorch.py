"""PyTorch: sets the environment that `torchrun` reads (PET_*), with the c10d rendezvous on the leading task.

Source: https://docs.pytorch.org/docs/stable/elastic/run.html. The rendezvous assigns the ranks of the processes that `torchrun`
starts. MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE are for programs that call `init_process_group` themselves, one process per
task, as in Kubeflow's operator; `torchrun` replaces all four for its processes.
"""

from __future__ import annotations

from collections.abc import Mapping

from clusters.frameworks.base import EVALUATOR, LEADER, WORKER, Addresses, Framework, Launch, Resources, Spec, shell

# Tasks of one role have the same argv and environment except TASK_INDEX, so the first must find out that it leads.
FIRST_LEADS = 'export PET_RDZV_CONF=is_host=$((TASK_INDEX == 0)); exec "$@"'


class PyTorch(Framework):
    name = "pytorch"
    title = "PyTorch"
    roles = (LEADER, WORKER, EVALUATOR)
    reserved_env = frozenset(
        {
            "MASTER_ADDR",
            "MASTER_PORT",
            "RANK",
            "WORLD_SIZE",
            "PET_NNODES",
            "PET_RDZV_BACKEND",
            "PET_RDZV_ENDPOINT",
            "PET_RDZV_ID",
            "PET_RDZV_CONF",
        }
    )

    def launch(self, spec: Spec, role: str, addresses: Addresses, resources: Mapping[str, Resources]) -> Launch:
        argv = shell(spec.command)
        if self.members(spec) == 1 or not self.role(role).takes_part:
            return Launch(argv)
        leader = self.leader(spec)
        endpoint = addresses[leader, 0]
        host, _, port = endpoint.rpartition(":")
        if role == leader and spec.count(role) > 1:
            argv = ("bash", "-c", FIRST_LEADS, "bash", *argv)
        return Launch(
            argv,
            {
                "MASTER_ADDR": host,
                "MASTER_PORT": port,
                "RANK": "$(TASK_RANK)",
                "WORLD_SIZE": str(self.members(spec)),
                "PET_NNODES": str(self.members(spec)),
                "PET_RDZV_BACKEND": "c10d",
                "PET_RDZV_ENDPOINT": endpoint,
                "PET_RDZV_ID": "run",
                # Only the leader may host the store; otherwise torchrun guesses from host names, which fails behind Services.
                "PET_RDZV_CONF": f"is_host={int(role == leader)}",
            },
        )
