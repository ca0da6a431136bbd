"""PyTorch: the environment that `torchrun` reads (PET_*), with the c10d rendezvous on the master.

Source: https://docs.pytorch.org/docs/stable/elastic/run.html. The rendezvous hands out the ranks, so no task needs a number
computed for it: the same values serve all tasks of a role. MASTER_ADDR and MASTER_PORT are there for programs that call
`init_process_group` themselves in a run of one task per node.
"""

from __future__ import annotations

from clusters.frameworks.base import Addresses
from clusters.manifest import ClusterSpec, RoleName


class PyTorch:
    name = "pytorch"

    def shared(self, spec: ClusterSpec, addresses: Addresses) -> dict[str, str]:
        return {}

    def environment(self, spec: ClusterSpec, role: RoleName, addresses: Addresses) -> dict[str, str]:
        nodes = spec.count("master") + spec.count("worker")
        if nodes == 1 or role == "evaluator":
            return {}
        endpoint = addresses["master", 0]
        host, _, port = endpoint.rpartition(":")
        return {
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
            "PET_NNODES": str(nodes),
            "PET_RDZV_BACKEND": "c10d",
            "PET_RDZV_ENDPOINT": endpoint,
            "PET_RDZV_ID": "run",
            # Only the master may open the store; otherwise torchrun guesses from host names, which fails behind Services.
            "PET_RDZV_CONF": f"is_host={int(role == 'master')}",
        }
