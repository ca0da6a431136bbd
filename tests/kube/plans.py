"""Plans as the portal makes them, for tests of the Kubernetes cloud."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clusters.admission.demand import Demand
from clusters.clouds.drivers.base import (
    AccessMode,
    CodeCommit,
    CodeFiles,
    Endpoint,
    Environment,
    ImageRef,
    Mount,
    NfsSource,
    Plan,
    RolePlan,
    RunRef,
    S3Source,
    VolumeRef,
    VolumeSource,
)
from clusters.clouds.drivers.kubernetes.render import names
from clusters.clouds.drivers.kubernetes.settings import Settings
from clusters.frameworks.base import Resources
from clusters.frameworks.runtimes import FOLDER, SHIPPED, Template, server
from clusters.manifest.cluster import ClusterSpec
from clusters.runs.plan import build_plan, model_folder
from clusters.services.manifest import ServiceSpec, cluster_spec

_ids = itertools.count(1000)
# A framework's variable that names all tasks.
SHARED = {"TF_CONFIG_CLUSTER": '{"chief": ["demo-mnist-3-1042-master-0.demo-mnist-3-1042:2222"]}'}
OF_ALL = {"TF_CONFIG": '{"cluster": $(TF_CONFIG_CLUSTER), "task": {"type": "chief", "index": $(TASK_INDEX)}}'}
IMAGE = ImageRef("tensorflow", "example/tensorflow:2.21", "", "")


def run_ref(namespace: str = "ops", **changes: Any) -> RunRef:
    """Returns a run whose id is unique in this process."""
    return RunRef(
        **{"id": next(_ids), "namespace": namespace, "appcode": "demo", "cluster": "mnist", "number": 3, **changes}
    )


def role(name: str, count: int = 1, **changes: Any) -> RolePlan:
    facts: dict[str, Any] = {
        "role": name,
        "count": count,
        "argv": ("bash", "-c", "python train.py"),
        "env": {"PORTAL_ROLE": name},
        "cpu_milli": 500,
        "memory_mb": 512,
        "gpus": 1,
        "gpu_model": "",
        "restart": "OnFailure",
        "retries": 1,
    }
    return RolePlan(**{**facts, **changes})


def plan(*roles: RolePlan, run: RunRef | None = None, **changes: Any) -> Plan:
    facts = {"run": run or run_ref(), "image": IMAGE, "roles": roles or (role("master"),), "mounts": ()}
    return Plan(**{**facts, **changes})


def bucket(name: str, prefix: str = "") -> S3Source:
    return S3Source("https://s3.example:9000", name, prefix, "AKIAEXAMPLE", "very-secret", "eu-1")


def endpoint(name: str, port: int, health: str = "/") -> Endpoint:
    return Endpoint(name, port, health, origin=f"https://{name}-mnist-demo.apps.example.com")


def data() -> tuple[Mount, Mount]:
    return (
        Mount("/elearn/input", True, bucket("digits")),
        Mount("/elearn/output", False, bucket("models", "mnist/3")),
    )


def volume(namespace: str = "ops", folder: str = "", access_mode: AccessMode = "ReadWriteOnce") -> VolumeSource:
    """Returns a volume of always the same datastore."""
    return VolumeSource(VolumeRef(7, namespace, "demo", "scratch"), "ceph-rbd", "20Gi", access_mode, folder)


def every_kind(namespace: str = "ops") -> dict[str, tuple[Plan, Settings]]:
    """Returns one plan of each kind that the portal makes, with the settings of its Kubernetes cluster."""
    run = RunRef(1042, namespace, "demo", "mnist", 3)
    output = Mount("/elearn/output", False, volume(namespace, "mnist/3"))
    shared = Mount("/elearn/output", False, volume(namespace, "mnist/3", "ReadWriteMany"))
    nfs = Mount("/elearn/input", True, NfsSource("nfs.example", "/data/digits"))
    main = Settings(portal="main")
    nvidia = Settings(
        portal="main",
        runtime_class="nvidia",
        batch_priority_class="batch",
        service_priority_class="serving",
        tolerations=("team=ml:NoSchedule", "spot:NoExecute"),
        disk="200Gi",
        gateway="traefik",
        gateway_namespace="traefik",
        gateway_pods={"app.kubernetes.io/name": "traefik"},
        ingress_class="traefik",
    )
    kueue = Settings(portal="main", kueue_queue="gpus")
    nginx = Settings(
        portal="main",
        gateway="nginx",
        gateway_namespace="ingress-nginx",
        ingress_annotations={"nginx.ingress.kubernetes.io/proxy-body-size": "1g"},
        apps_certificate="apps-tls",
    )
    index = Settings(portal="main", package_index="http://packages.gpu-cloud-packages.svc:3141/simple")
    routers = Settings(portal="main", router_namespace="gpu-cloud")
    torch = Environment("torch:3", "a digest", f"greeting==1.0 --hash=sha256:{'0' * 64}\n", "true $HOME", "import this")
    lab = role("notebook", restart="Always", gpus=0, from_image=True, argv=("jupyter", "lab"))
    ps = role("ps", restart="Always", gpus=0)
    pool = Demand(
        labels=(("topology.kubernetes.io/zone", "eu-1"),), tolerations=("team=ml:NoSchedule", "burst"), extra=(("rdma/hca", "1"),)
    )  # fmt: skip
    mig, amd = Demand("nvidia.com/mig-1g.10gb", extra=(("hugepages-2Mi", "1Gi"),)), Demand("amd.com/gpu")
    return {
        "roles-in-three-pools": (
            plan(
                role("master", demand=pool, gpu_model="NVIDIA-H100"),
                role("worker", 2, gpus=2, demand=mig, gpu_model="H100 1g.10gb"),
                role("evaluator", demand=amd, gpu_model="MI300X"),
                run=run,
            ),
            nvidia,
        ),
        "single-machine-on-a-volume": (plan(role("master"), run=run, mounts=(output,)), main),
        "a-commit-of-a-private-repository": (
            plan(
                role("master"),
                run=run,
                code=CodeCommit("https://git.example/team/$x.git", "0123456789" * 4, "train", "oauth2", "very-secret"),
            ),
            main,
        ),
        "files-of-its-own": (
            plan(
                role("master"),
                run=run,
                code=CodeFiles({"train.py": "import lib.model\n", "lib/model.py": "N = $(HOME)\n"}),
            ),
            main,
        ),
        "one-parameter-server-s3": (
            plan(role("master", env=OF_ALL), ps, role("worker", 2, env=OF_ALL), run=run, mounts=data(), shared=SHARED),
            main,
        ),
        "input-in-parts": (
            plan(
                role("master"),
                role("worker", 2, first_part=0),
                run=run,
                mounts=(replace(data()[0], parts=2, fold=1, folds=5), data()[1]),
            ),
            main,
        ),
        "mounted-input-in-parts": (
            plan(
                role("master"),
                role("worker", 2, first_part=0),
                run=run,
                mounts=(replace(nfs, parts=2, fold=1, folds=5), data()[1]),
            ),
            main,
        ),
        "input-cached": (
            plan(
                role("worker", 2),
                run=run,
                mounts=(
                    replace(
                        data()[0],
                        cached=True,
                        version="digits@1",
                        digest="a" * 64,
                        disk_bytes=5 * 10**9,
                        fold=1,
                        folds=5,
                    ),
                    data()[1],
                ),
            ),
            replace(main, cache_class="cephfs"),
        ),
        "input-streamed": (
            plan(role("master"), run=run, mounts=(replace(data()[0], stream_key="0123456789" * 6), data()[1])),
            main,
        ),
        "several-parameter-servers-nfs": (
            plan(
                role("master"),
                role("ps", 2, restart="Always", gpus=0),
                role("worker", 4),
                run=run,
                mounts=(nfs, shared),
            ),
            main,
        ),
        "all-reduce-on-one-model": (plan(role("worker", 4, gpus=8, gpu_model="NVIDIA-H200"), run=run), nvidia),
        "service": (
            plan(
                role(
                    "master", restart="Always", endpoints=(endpoint("notebook", 8888, "/api"), endpoint("board", 6006))
                ),
                role("worker", 2, restart="Always"),
                run=run,
                mounts=(*data(), Mount("/home/elearn", False, NfsSource("nfs.example", "/homes/demo"))),
                secrets={"JUPYTER_TOKEN": "very-secret"},
            ),
            nvidia,
        ),
        "opened-by-nginx": (plan(role("server", restart="Always", endpoints=(endpoint("web", 8080),)), run=run), nginx),
        "jax": (_of(run, "jax", {"master": 1, "worker": 2}), main),
        "workers-alone": (_of(run, "pytorch", {"worker": 2}), main),
        "parallel": (_of(run, "parallel", {"worker": 3}), main),
        "tensorboard": (
            plan(
                role("board", restart="Always", gpus=0, endpoints=(Endpoint("tensorboard", 6006),)),
                run=run,
                mounts=(
                    replace(data()[0], mount_path="/elearn/runs/mnist/1", follow=True),
                    replace(nfs, mount_path="/elearn/runs/mnist/2", follow=True),
                ),
            ),
            main,
        ),
        "notebook-with-runs": (
            plan(
                role("notebook", restart="Always", gpus=0, endpoints=(Endpoint("notebook", 8888),)),
                run=run,
                mounts=(
                    data()[0],
                    replace(data()[0], mount_path="/elearn/runs/mnist/1", shown_gib=20),
                    replace(nfs, mount_path="/elearn/runs/mnist/2", shown_gib=20),
                ),
            ),
            main,
        ),
        "from-an-environment": (plan(role("master"), run=run, environment=torch), index),
        "notebook-over-a-kept-environment": (
            plan(lab, run=run, environment=torch, mounts=(replace(data()[0], mount_path="/elearn/input"),)),
            replace(index, environment_class="cephfs"),
        ),
        "queued-by-kueue": (plan(role("master"), ps, role("worker", 2), run=run), kueue),
        **{f"served-by-{each['name']}": (_served(run, each), routers) for each in SHIPPED if each["name"] != "portal"},
    }


def _served(run: RunRef, facts: Mapping[str, Any]) -> Plan:
    """Returns the plan of a service's replica, with a built-in runtime."""
    said = ServiceSpec(model="digits/3", runtime=facts["name"], flavor="one-gpu")
    template = Template(facts["command"], facts["health"], facts.get("folder", FOLDER), facts["port"])
    spec = cluster_spec(said, 3, server(said.runtime, template, "digits", 3), env=facts.get("env", {}))
    parsed = ClusterSpec.model_validate(spec)
    folder = model_folder(parsed)
    return build_plan(
        run,
        parsed,
        image=ImageRef(said.runtime, facts["image"], "", ""),
        resources={"server": Resources("one-gpu", 500, 512, 1, "")},
        mounts=(
            Mount(folder, True, bucket("models", "digits/3"), version="version 3 of the model digits", digest="0"),
        ),
        addresses={("server", 0): names.address(run, "server", 0)},
        model={"PORTAL_MODEL": folder},
    )


def _of(run: RunRef, framework: str, counts: dict[str, int]) -> Plan:
    """Returns the plan that a framework makes of a spec."""
    roles = {name: {"flavor": "one-gpu", "count": count} for name, count in counts.items()}
    body = {"framework": framework, "image": IMAGE.name, "command": "python train.py", "roles": roles}
    return build_plan(
        run,
        ClusterSpec.model_validate(body),
        image=IMAGE,
        resources=dict.fromkeys(counts, Resources("one-gpu", 500, 512, 1, "")),
        mounts=(),
        addresses={(name, n): names.address(run, name, n) for name, count in counts.items() for n in range(count)},
    )
