"""JAX processes find each other by the driver's variables: compared as values, and in a real computation of two processes.

The Kubernetes manifest is compared with tests/kube/expected/jax.yaml.
"""

import shlex
import textwrap

import pytest

from tests.clusters.frameworks.test_frameworks import environment, spec
from tests.environments import installed
from tests.running import ROOT

# Beside TensorFlow, each process of that would import it, too, which takes a second.
REQUIREMENTS = ROOT / "tests" / "jax" / "requirements.txt"

# As in docs/contributing.md and the driver. Each process contributes its own value; all processes see the sum.
PROGRAM = textwrap.dedent("""\
    import os
    import jax

    jax.distributed.initialize(
        num_processes=int(os.environ["JAX_NUM_PROCESSES"]), process_id=int(os.environ["JAX_PROCESS_ID"]),
        cluster_detection_method="deactivate",
    )
    from jax.experimental.multihost_utils import process_allgather
    rank = int(os.environ["TASK_RANK"])
    told = process_allgather(jax.numpy.array([10 + rank]))
    print(f"process {jax.process_index()} of {jax.process_count()} heard {told.ravel().tolist()}", flush=True)
""")


def test_the_master_is_the_coordinator_and_all_count_from_it():
    of = spec("jax", worker=2)
    everybody = {
        "JAX_COORDINATOR_ADDRESS": "master-0.x:2222",
        "JAX_NUM_PROCESSES": "3",
        "JAX_PROCESS_ID": "$(TASK_RANK)",
        # Kubeflow's names.
        "COORDINATOR_ADDRESS": "master-0.x",
        "COORDINATOR_PORT": "2222",
        "NUM_PROCESSES": "3",
        "PROCESS_ID": "$(TASK_RANK)",
    }
    assert environment(of, "master", 0) == everybody
    assert environment(of, "worker", 1) == everybody


def test_a_master_alone_is_a_single_machine():
    assert environment(spec("jax"), "master", 0) == {}


@pytest.mark.django_db(transaction=True)
def test_two_processes_compute_together_on_this_machine(loop, people):
    from clusters.catalog.models import Flavor, Image
    from clusters.clouds.registry import cloud, run_ref
    from clusters.cluster import actions
    from clusters.manifest.cluster import ClusterManifest

    Image.objects.create(name="jax", title="JAX", environment=str(installed("jax", REQUIREMENTS)), container="")
    Flavor.objects.create(name="middle", title="Middle", cpu_milli=500, memory_mb=2048)
    body = {
        "framework": "jax",
        "image": "jax",
        "command": f"python -c {shlex.quote(PROGRAM)}",
        "roles": {"worker": {"flavor": "middle", "count": 2}},
        "retries": 0,
    }
    document = {"kind": "cluster", "metadata": {"name": "demo", "appcode": "ops-demo"}, "spec": body}
    cluster = actions.create_cluster(ClusterManifest.model_validate(document), acting_user=people.bob)
    run = loop.until_phase(cluster, "Succeeded", "Failed")
    assert (run.phase, run.message) == ("Succeeded", "All 2 workers have finished.")
    said = [
        cloud("local").log(run_ref(run), "worker", index, attempt=0).data.decode().splitlines()[-1]
        for index in range(2)
    ]
    assert said == ["process 0 of 2 heard [10, 11]", "process 1 of 2 heard [10, 11]"]
