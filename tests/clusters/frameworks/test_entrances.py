"""Access to the endpoints of tasks, for every framework that serves: on Kubernetes only through the entrance."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusters.clouds.drivers.base import ImageRef, RunRef
from clusters.clouds.drivers.kubernetes.render import endpoints
from clusters.clouds.drivers.kubernetes.render.manifests import run_manifests
from clusters.clouds.drivers.kubernetes.settings import Settings
from clusters.frameworks import FRAMEWORKS
from clusters.frameworks.base import Resources
from clusters.manifest.cluster import ClusterSpec
from clusters.runs.plan import build_plan

PROOF = "the-proof-of-a-cluster"
NAMED = {"endpoints": [{"name": "more", "port": 9000}]}
# Every framework that listens by itself, as a spec; a new framework needs a row.
SERVING: dict[str, dict[str, Any]] = {
    "jupyter": {"home": "home", "roles": {"notebook": {"flavor": "small", **NAMED}}},
    "tensorboard": {"runs": ["train/1"], "roles": {"board": {"flavor": "small", **NAMED}}},
    "web": {"command": "serve", "roles": {"server": {"flavor": "small", **NAMED}}},
    "serving": {"model": "digits/1", "roles": {"server": {"flavor": "small", **NAMED}}},
}


def test_every_application_has_a_row() -> None:
    assert SERVING.keys() == {name for name, each in FRAMEWORKS.items() if each.is_application}


@pytest.mark.parametrize("name", SERVING)
def test_the_entrance_is_the_only_way_in_and_no_manifest_shows_the_proof(name: str) -> None:
    spec = ClusterSpec.model_validate({"framework": name, "image": "x", **SERVING[name]})
    (role,) = spec.active_roles
    plan = build_plan(
        RunRef(1, "ops", "ops-demo", "demo", 1), spec, image=ImageRef("x", "example/x", "", ""), mounts=(),
        resources={role: Resources("small", 100, 128, 0, "")}, addresses={(role, 0): "demo.example:2222"}, proof=PROOF,
    )  # fmt: skip
    settings = Settings(portal="main", gateway="traefik", gateway_namespace="traefik")
    made = run_manifests(plan, "uid", settings)
    kinds = {each["kind"]: each for each in made}
    pod = kinds["Deployment"]["spec"]["template"]["spec"]
    (entrance,) = (each for each in pod["initContainers"] if each["name"] == endpoints.ENTRANCE)
    led = dict(pair.split(":") for pair in entrance["args"][2:])

    served = {str(each.port) for each in plan.roles[0].endpoints}
    assert set(led.values()) == served
    assert not served & led.keys()
    # The network policy lets outside traffic reach only the entrance's ports.
    opened = [rule["ports"] for rule in kinds["NetworkPolicy"]["spec"]["ingress"][1:]]
    assert {str(each["port"]) for ports in opened for each in ports} <= led.keys()
    services = [each["spec"]["ports"] for each in made if each["kind"] == "Service"]
    ports = {str(each["targetPort"]) for found in services for each in found if "targetPort" in each}
    assert ports == led.keys()
    assert str(pod["containers"][0]["readinessProbe"]["httpGet"]["port"]) in led
    # Our own programs listen on the pod's loopback; others find it in HOST.
    assert "0.0.0.0" not in json.dumps(pod["containers"])
    assert "127.0.0.1" in json.dumps(pod["containers"])
    secrets = [each["stringData"] for each in made if each["kind"] == "Secret"]
    assert [each["proof"] for each in secrets if "proof" in each] == [PROOF]
    assert PROOF not in json.dumps([each for each in made if each["kind"] != "Secret"])
