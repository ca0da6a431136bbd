"""PyTorch: the environment that `torchrun` reads (PET_*), with the c10d rendezvous on the master.

Source: https://docs.pytorch.org/docs/stable/elastic/run.html. The rendezvous hands out the ranks, so no task needs a number
computed for it: the same values serve all tasks of a role. MASTER_ADDR and MASTER_PORT are there for programs that call
`init_process_group` themselves in a run of one task per node.
"""

from __future__ import annotations

from collections.abc import Mapping

from clusters.frameworks.base import EVALUATOR, MASTER, WORKER, Addresses, Framework, Launch, Resources, Spec, shell


class PyTorch(Framework):
    name = "pytorch"
    title = "PyTorch"
    roles = (MASTER, WORKER, EVALUATOR)
    reserved_env = frozenset(
        {
            "MASTER_ADDR",
            "MASTER_PORT",
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
        endpoint = addresses["master", 0]
        host, _, port = endpoint.rpartition(":")
        return Launch(
            argv,
            {
                "MASTER_ADDR": host,
                "MASTER_PORT": port,
                "PET_NNODES": str(self.members(spec)),
                "PET_RDZV_BACKEND": "c10d",
                "PET_RDZV_ENDPOINT": endpoint,
                "PET_RDZV_ID": "run",
                # Only the master may open the store; otherwise torchrun guesses from host names, which fails behind Services.
                "PET_RDZV_CONF": f"is_host={int(role == 'master')}",
            },
        )
