"""JAX: one process per task. The master is the coordinator and process 0; with workers alone, worker 0 is.

Source: jax/_src/distributed.py of JAX 0.10. `jax.distributed.initialize` reads only the coordinator's address from the
environment; outside of Slurm and MPI it takes the two numbers as arguments. So a program begins with

    jax.distributed.initialize(
        num_processes=int(os.environ["JAX_NUM_PROCESSES"]), process_id=int(os.environ["JAX_PROCESS_ID"]),
        cluster_detection_method="deactivate",  # on Kubernetes it would call the API server, which tasks may not
    )

Kubeflow's programs read the same from PROCESS_ID, NUM_PROCESSES, COORDINATOR_ADDRESS (the host) and COORDINATOR_PORT.

A single task gets none of these variables, so that a plain program stays a plain program.
"""

from __future__ import annotations

from collections.abc import Mapping

from clusters.frameworks.base import LEADER, WORKER, Addresses, Framework, Launch, Resources, Spec, shell


class JAX(Framework):
    name = "jax"
    title = "JAX"
    roles = (LEADER, WORKER)
    reserved_env = frozenset(
        {
            "JAX_COORDINATOR_ADDRESS",
            "JAX_NUM_PROCESSES",
            "JAX_PROCESS_ID",
            "COORDINATOR_ADDRESS",
            "COORDINATOR_PORT",
            "NUM_PROCESSES",
            "PROCESS_ID",
        }
    )

    def launch(self, spec: Spec, role: str, addresses: Addresses, resources: Mapping[str, Resources]) -> Launch:
        argv = shell(spec.command)
        if self.members(spec) == 1:
            return Launch(argv)
        coordinator, processes = addresses[self.leader(spec), 0], str(self.members(spec))
        host, _, port = coordinator.rpartition(":")
        return Launch(
            argv,
            {
                "JAX_COORDINATOR_ADDRESS": coordinator,
                "JAX_NUM_PROCESSES": processes,
                "JAX_PROCESS_ID": "$(TASK_RANK)",
                "COORDINATOR_ADDRESS": host,
                "COORDINATOR_PORT": port,
                "NUM_PROCESSES": processes,
                "PROCESS_ID": "$(TASK_RANK)",
            },
        )
