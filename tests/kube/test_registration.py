"""Registering a real cluster: what the connection can do, missing rights, and changes that would lose running tasks."""

from __future__ import annotations

import base64
import io
import json
import secrets
import socket
import socketserver
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from django.core.management import CommandError, call_command

from clusters.clouds.drivers.base import CloudError
from clusters.clouds.drivers.kubernetes.api.lookup import KUEUE_CONFIG, NO_KUEUE, ONLY_LOOKED_UP
from clusters.clouds.drivers.kubernetes.api.probe import UNSERVED
from tests.kube import kueue
from tests.kube.following import ROLE, hand_over, portal_kubeconfig
from tests.kube.plane import Plane

pytestmark = [pytest.mark.kube, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def manifest(plane: Plane) -> Callable[..., Any]:
    from clusters.cloud_admin.manifest import read_manifest

    def make(**spec: Any) -> Any:
        text = portal_kubeconfig(plane).read_text()
        return read_manifest({"metadata": {"name": "plane"}, "spec": {"kubeconfig": text, **spec}})

    return make


def refused(call: Callable[[], object]) -> dict[str, str]:
    from portal.errors import Invalid

    with pytest.raises(Invalid) as caught:
        call()
    return {".".join(error.path): error.message for error in caught.value.errors}


def test_a_connection_with_the_rights_that_are_asked_for_is_good(people: Any, manifest: Callable[..., Any]) -> None:
    from clusters.cloud_admin import actions
    from portal.models import Event

    row = actions.register(manifest(title="Plane", settings={"store_seconds": 30}), acting_user=people.root)
    report = actions.try_connection(row)
    assert report.ok, report.message
    assert report.message.startswith("Kubernetes v1.36.")
    assert report.message.endswith(f"GPUs. The portal may do all that it needs. {UNSERVED}")
    assert row.test["all_or_none"] == {"enforced": False, "api": "", "message": UNSERVED}
    row.refresh_from_db()
    assert row.uid
    assert row.test["gpus"] >= 13 * 8
    assert row.test["missing"] == []
    assert "token" not in row.server
    [event] = Event.objects.filter(object="kubernetes plane")
    assert event.verb == "kubernetes.registered"
    assert "PRIVATE" not in event.message + json.dumps(event.data)


def test_a_cluster_whose_nodes_have_no_disk_for_tasks_is_not_good(people: Any, manifest: Callable[..., Any]) -> None:
    from clusters.cloud_admin import actions

    # Nodes of the plane offer 2Ti.
    wanted = manifest(settings={"disk": "4Ti", "disk_request": "3Ti"})
    report = actions.try_connection(actions.register(wanted, acting_user=people.root))
    assert not report.ok
    sentence = "No node takes a task: all offer less ephemeral-storage than the 3072 GiB that a task reserves."
    assert sentence in report.message


def test_keys_are_in_no_file_that_a_killed_process_would_leave(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over HTTPS and over a WebSocket, both with a client certificate."""
    from websocket import WebSocketBadStatusException

    from clusters.clouds.drivers.kubernetes import exec as pod_exec
    from clusters.clouds.drivers.kubernetes.api import kubeconfig
    from clusters.clouds.drivers.kubernetes.api.client import Client

    # The plane's own client keeps its keys in files, from its first call on.
    text = portal_kubeconfig(plane).read_text()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = kubeconfig.read(text)
    assert "client-key-data" in found["users"][0]["user"]
    client = Client.connect(found)
    assert client.get("/api/v1/nodes")["items"]
    with pytest.raises(WebSocketBadStatusException) as caught:
        pod_exec._connect(client, "/api/v1/namespaces/default/pods/nobody/exec?command=true&stdout=true")
    assert pod_exec._said(caught.value) == 'pods "nobody" not found'
    assert list(tmp_path.iterdir()) == []
    # Without its own certificate authority, the server is not trusted.
    found["clusters"][0]["cluster"].pop("certificate-authority-data")
    with pytest.raises(CloudError, match="CERTIFICATE_VERIFY_FAILED"):
        Client.connect(found).get_once("/version")


class Tunnel(socketserver.StreamRequestHandler):
    """An HTTP proxy that only supports tunnels (CONNECT)."""

    asked: ClassVar[list[str]] = []

    def handle(self) -> None:
        first = self.rfile.readline().decode()
        while self.rfile.readline().strip():
            pass
        method, target, _ = first.split()
        self.asked.append(f"{method} {target}")
        host, _, port = target.partition(":")
        with socket.create_connection((host, int(port))) as there:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=_pump, args=(there, self.connection), daemon=True)
            back.start()
            _pump(self.connection, there)
            back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


def test_a_cluster_behind_a_proxy_is_reached_by_it(plane: Plane) -> None:
    """Calls and commands use different libraries, each with its own proxy support."""
    from websocket import WebSocketBadStatusException

    from clusters.clouds.drivers.kubernetes import exec as pod_exec
    from clusters.clouds.drivers.kubernetes.api import kubeconfig
    from clusters.clouds.drivers.kubernetes.api.client import Client

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Tunnel) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        given = yaml.safe_load(portal_kubeconfig(plane).read_text())
        given["clusters"][0]["cluster"]["proxy-url"] = f"http://127.0.0.1:{server.server_address[1]}"
        found = kubeconfig.read(yaml.safe_dump(given))
        client = Client.connect(found)
        tunnel = f"CONNECT {kubeconfig.address(found).removeprefix('https://')}"
        assert client.get("/api/v1/nodes")["items"]
        assert Tunnel.asked == [tunnel]
        with pytest.raises(WebSocketBadStatusException) as caught:
            pod_exec._connect(client, "/api/v1/namespaces/default/pods/nobody/exec?command=true&stdout=true")
        assert pod_exec._said(caught.value) == 'pods "nobody" not found'
        assert Tunnel.asked == [tunnel, tunnel]
        client.api.rest_client.pool_manager.clear()
        server.shutdown()


def bound(plane: Plane, user: str, role: Any) -> str:
    """Returns a kubeconfig of a new user with the rights of this ClusterRole, once they are in force."""
    group = "rbac.authorization.k8s.io"
    plane.request("POST", f"/apis/{group}/v1/clusterroles", {**role, "metadata": {"name": user}})
    binding = {
        "metadata": {"name": user},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }
    plane.request("POST", f"/apis/{group}/v1/clusterrolebindings", binding)
    plane.until_allowed(user, "watch", "nodes")
    return plane.kubeconfig_for(user).read_text()


def test_what_the_settings_name_is_looked_up_when_it_is_saved_and_by_a_test(
    plane: Plane, people: Any, manifest: Callable[..., Any]
) -> None:
    """With real objects of each kind. Otherwise a wrong name would show at the first run, or never."""
    from clusters.cloud_admin import actions

    mine = f"mine-{secrets.token_hex(3)}"
    made = {
        "/apis/node.k8s.io/v1/runtimeclasses": {"handler": "runc"},
        "/apis/scheduling.k8s.io/v1/priorityclasses": {"value": 7},
        "/apis/networking.k8s.io/v1/ingressclasses": {"spec": {"controller": "example.com/none"}},
    }
    for path, more in made.items():
        plane.request("POST", path, {"metadata": {"name": mine}, **more})
    kinds = {
        "runtime_class": "RuntimeClass",
        "batch_priority_class": "PriorityClass",
        "service_priority_class": "PriorityClass",
        "ingress_class": "IngressClass",
    }
    # A class of hand-made volumes exists only as a name.
    storage = {"storage_classes": ["manual"], "environment_class": "manual", "cache_class": "manual"}
    wrong = manifest(settings={**storage, **dict.fromkeys(kinds, "nope")})
    sentences = refused(lambda: actions.register(wrong, acting_user=people.root))
    assert sentences == {
        f"spec.settings.{field}": f"This cluster has no {kind} “nope”." for field, kind in kinds.items()
    }
    right = {**storage, **dict.fromkeys(kinds, mine)}
    row = actions.register(manifest(settings=right), acting_user=people.root)
    report = actions.try_connection(row)
    assert (report.ok, report.json_value()["misnamed"]) == (True, {}), report.message
    assert refused(lambda: actions.change(row, manifest(settings={"runtime_class": "nope"}), acting_user=people.root))
    for path in made:
        plane.request("DELETE", f"{path}/{mine}")
    report = actions.try_connection(row)
    assert not report.ok
    assert f"This cluster has no RuntimeClass “{mine}”." in report.message
    assert set(report.json_value()["misnamed"]) == set(kinds)
    # A change that does not touch the settings does not check them.
    actions.change(row, actions.manifest_of(row, enabled=False), acting_user=people.root)


def test_an_autoscaler_is_found_with_the_portal_s_rights(
    plane: Plane, people: Any, manifest: Callable[..., Any]
) -> None:
    from clusters.cloud_admin import actions

    row = actions.register(manifest(), acting_user=people.root)
    assert "autoscaler" not in actions.try_connection(row).message
    path, name = "/api/v1/namespaces/kube-system/configmaps", "cluster-autoscaler-status"
    plane.request("POST", path, {"metadata": {"name": name}})
    report = actions.try_connection(row)
    assert report.ok
    assert "This cluster has a cluster autoscaler, and “Nodes on demand” is off: runs" in report.message
    row = actions.change(row, manifest(settings={"nodes_on_demand": True}), acting_user=people.root)
    assert "autoscaler" not in actions.try_connection(row).message
    plane.request("DELETE", f"{path}/{name}")


def test_a_queue_is_looked_up_in_the_namespaces_of_its_business_lines(
    plane: Plane, people: Any, manifest: Callable[..., Any]
) -> None:
    from clusters.cloud_admin import actions
    from clusters.cloud_admin.manifest import own_label
    from portal.models import OrgNode

    line = people.ops.org_node
    OrgNode.objects.filter(pk=line.pk).update(namespace=f"line-{secrets.token_hex(4)}")
    line.refresh_from_db()
    plane.make_namespace(line.namespace, {"gpu-cloud/portal": own_label()})
    row = actions.register(manifest(), acting_user=people.root)
    actions.place(line, "plane", acting_user=people.root)
    queued = manifest(settings={"kueue_queue": "gpus"})

    def change() -> None:
        actions.change(row, queued, acting_user=people.root)

    assert refused(change) == {"spec.settings.kueue_queue": NO_KUEUE}
    with kueue.installed(plane):
        kueue.make_queue(plane, line.namespace, "other")
        sentence = f"There is no LocalQueue “gpus” in namespace {line.namespace}: runs there would wait for ever."
        assert refused(change) == {"spec.settings.kueue_queue": sentence}
        kueue.make_queue(plane, line.namespace, "gpus")
        change()
        report = actions.try_connection(row)
        assert report.ok, report.message
        row.refresh_from_db()
        assert "twice" not in actions.try_connection(row).message
        config, spaces = "/api/v1/namespaces/default/configmaps", {"key": "gpu-cloud/portal", "operator": "Exists"}
        for exclude, told in (([], True), ([{**spaces, "operator": "DoesNotExist"}], False), ([spaces], True)):
            text = yaml.safe_dump(
                {"manageJobsWithoutQueueName": True, "managedJobsNamespaceSelector": {"matchExpressions": exclude}}
            )
            body = {"metadata": {"name": KUEUE_CONFIG}, "data": {"controller_manager_config.yaml": text}}
            plane.request("POST", config, body)
            assert ("it would count every run twice" in actions.try_connection(row).message) == told
            plane.request("DELETE", f"{config}/{KUEUE_CONFIG}")


def test_what_may_not_be_looked_up_is_said_and_refuses_nothing(plane: Plane, people: Any) -> None:
    """For example with an older ClusterRole."""
    from clusters.cloud_admin import actions
    from clusters.cloud_admin.manifest import read_manifest

    role = yaml.safe_load(ROLE.read_text())
    role["rules"] = [rule for rule in role["rules"] if not set(rule["resources"]) & ONLY_LOOKED_UP]
    config = bound(plane, f"older-{secrets.token_hex(3)}", role)
    spec = {"kubeconfig": config, "settings": {"runtime_class": "nope"}}
    row = actions.register(read_manifest({"metadata": {"name": "older"}, "spec": spec}), acting_user=people.root)
    report = actions.try_connection(row)
    assert report.ok
    assert "Whether there is a RuntimeClass “nope” could not be checked: " in report.message
    assert "Apply docker/kubernetes/clusterrole.yaml again." in report.message
    assert "get runtimeclasses.node.k8s.io" in report.json_value()["missing_optional"]


def test_every_missing_right_is_named(plane: Plane, people: Any) -> None:
    from clusters.cloud_admin import actions
    from clusters.cloud_admin.manifest import read_manifest

    user = f"half-{secrets.token_hex(3)}"
    role = yaml.safe_load(ROLE.read_text())
    taken = []
    for rule in role["rules"]:
        if "jobs" in rule["resources"]:
            rule["verbs"] = [verb for verb in rule["verbs"] if verb != "create"]
            taken.append("create jobs.batch")
        if rule["resources"] == ["nodes"]:
            rule["verbs"] = ["watch"]
            taken.append("list nodes")
        if rule["resources"] == ["pods/exec"]:
            rule["resources"] = ["pods/attach"]
            taken += [f"{verb} pods/exec" for verb in rule["verbs"]]
    body = {"metadata": {"name": "half"}, "spec": {"kubeconfig": bound(plane, user, role)}}
    row = actions.register(read_manifest(body), acting_user=people.root)
    report = actions.try_connection(row)
    assert report.found is not None
    assert set(report.found.facts["missing"]) == set(taken)
    assert not report.ok
    assert "clusterrole.yaml" in report.message


def test_who_is_not_known_or_does_not_answer_is_told(people: Any, plane: Plane) -> None:
    from clusters.cloud_admin import actions
    from clusters.cloud_admin.manifest import read_manifest

    config = yaml.safe_load(portal_kubeconfig(plane).read_text())
    config["users"][0]["user"] = {"token": "nobody-knows-this"}
    body = {"metadata": {"name": "stranger"}, "spec": {"kubeconfig": yaml.safe_dump(config)}}
    row = actions.register(read_manifest(body), acting_user=people.root)
    report = actions.try_connection(row)
    assert not report.ok
    assert report.message.startswith("Kubernetes does not accept the portal's credentials")
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    body["spec"]["kubeconfig"] = yaml.safe_dump(config)
    row = actions.change(row, read_manifest(body, name="stranger"), acting_user=people.root)
    report = actions.try_connection(row)
    assert "does not answer" in report.message
    assert "nobody-knows" not in report.message


def test_living_runs_are_not_taken_out_of_sight(
    people: Any, plane: Plane, manifest: Callable[..., Any], tmp_path: Path
) -> None:
    from clusters.catalog.models import Flavor, Image
    from clusters.cloud_admin import actions
    from clusters.clouds.models import Cloud
    from clusters.cluster.actions import create_cluster
    from clusters.manifest.cluster import ClusterManifest
    from clusters.runs.models import Run
    from portal.errors import Conflict

    Flavor.objects.create(name="small", title="Small", cpu_milli=100, memory_mb=128)
    Image.objects.create(name="python", title="Python", container="example/python:3")
    row = actions.register(manifest(default=True, settings={"portal": "one"}), acting_user=people.root)
    actions.try_connection(row)
    spec = {"image": "python", "command": "true", "roles": {"master": {"flavor": "small"}}}
    create_cluster(
        ClusterManifest.model_validate({"metadata": {"name": "x", "appcode": "ops-demo"}, "spec": spec}),
        acting_user=people.bob,
    )
    assert Run.objects.get().cloud == "plane"
    config = yaml.safe_load(portal_kubeconfig(plane).read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    away = manifest(default=True, settings={"portal": "one"}, kubeconfig=yaml.safe_dump(config))
    errors = refused(lambda: actions.change(row, away, acting_user=people.root))
    assert errors["spec.kubeconfig"].startswith("It has 1 run of ours, so the portal has to see")
    errors = refused(
        lambda: actions.change(row, manifest(default=True, settings={"portal": "two"}), acting_user=people.root)
    )
    assert "The old label is on 1 run" in errors["spec.settings.portal"]
    Cloud.objects.filter(kind="kubernetes").update(uid="of-another-cluster")
    row.refresh_from_db()
    other = manifest(default=True, settings={"portal": "one"}, kubeconfig=plane.kubeconfig.read_text())
    errors = refused(lambda: actions.change(row, other, acting_user=people.root))
    assert errors["spec.kubeconfig"] == (
        "This is another Kubernetes cluster than the one with 1 run of ours. If that one is lost for good, give it up first."
    )
    assert "another Kubernetes cluster" in actions.try_connection(row).message
    with pytest.raises(Conflict, match="has 1 run of ours"):
        actions.remove(row, acting_user=people.root)
    Run.objects.update(gone=True)
    actions.change(row, other, acting_user=people.root)
    row.refresh_from_db()
    assert row.revision == 2
    with pytest.raises(Conflict, match="is the default"):
        actions.remove(row, acting_user=people.root)


def test_two_portals_that_nobody_named_have_labels_of_their_own(
    people: Any, manifest: Callable[..., Any], settings: Any
) -> None:
    from clusters.cloud_admin import actions
    from clusters.cloud_admin.manifest import own_label

    label = own_label()
    row = actions.register(manifest(), acting_user=people.root)
    assert row.settings == {"portal": label}
    assert actions.change(row, manifest(title="Again"), acting_user=people.root).settings == {"portal": label}
    settings.SECRET_KEY = "of another portal"
    assert own_label() != label
    # A cluster that was registered before such labels existed keeps the label of its objects.
    row.settings = {}
    row.save()
    assert actions.change(row, manifest(title="Old"), acting_user=people.root).settings == {}


def test_a_namespace_of_somebody_else_is_said_wherever_it_is_named(
    people: Any, plane: Plane, manifest: Callable[..., Any]
) -> None:
    from clusters.catalog.models import Flavor, Image
    from clusters.cloud_admin import actions
    from clusters.cloud_admin.manifest import own_label
    from clusters.clouds.models import Placement
    from clusters.cluster.actions import create_cluster
    from clusters.manifest.cluster import ClusterManifest
    from clusters.runs import reconcile
    from clusters.runs.models import Run
    from clusters.runs.placing import places
    from portal.models import OrgNode

    # The namespaces of the other lines belong to this portal.
    hand_over(plane, own_label())
    line = people.ops.org_node
    OrgNode.objects.filter(pk=line.pk).update(namespace=f"line-{secrets.token_hex(4)}")
    line.refresh_from_db()
    plane.make_namespace(line.namespace)
    row = actions.register(manifest(default=True), acting_user=people.root)
    report = actions.try_connection(row)
    assert not report.ok
    hint = f"kubectl label namespace {line.namespace} gpu-cloud/portal={own_label()}"
    assert report.message.endswith(hint)
    assert refused(lambda: actions.place(line, "plane", acting_user=people.root))["cloud"].endswith(hint)
    assert not Placement.objects.exists()

    Flavor.objects.create(name="small", title="Small", cpu_milli=100, memory_mb=128)
    Image.objects.create(name="python", title="Python", container="example/python:3")
    spec = {"image": "python", "command": "true", "roles": {"master": {"flavor": "small"}}}
    create_cluster(
        ClusterManifest.model_validate({"metadata": {"name": "x", "appcode": "ops-demo"}, "spec": spec}),
        acting_user=people.bob,
    )
    run = Run.objects.get()
    reconcile.reconcile(run.pk)
    places.place(row.name)
    reconcile.reconcile(run.pk)
    run.refresh_from_db()
    assert run.refusal.endswith(hint)
    # It holds nothing, and no news of it is expected.
    assert (run.phase, run.gone) == ("Failed", True)
    label = {"metadata": {"labels": {"gpu-cloud/portal": own_label()}}}
    plane.request("PATCH", f"/api/v1/namespaces/{line.namespace}", label)
    actions.place(line, "plane", acting_user=people.root)
    assert Placement.objects.get().cloud == row


class TestCommand:
    @pytest.fixture
    def run(self) -> Callable[..., str]:
        def call(*arguments: str) -> str:
            out = io.StringIO()
            call_command("register_kubernetes", "plane", *arguments, stdout=out, stderr=out)
            return out.getvalue()

        return call

    def test_saying_it_again_changes_nothing(
        self, run: Callable[..., str], plane: Plane, people: Any, tmp_path: Path
    ) -> None:
        from clusters.cloud_admin.manifest import own_label
        from clusters.clouds.models import Cloud
        from clusters.clouds.placement import place_of
        from portal.models import Event

        hand_over(plane, own_label())
        config = yaml.safe_load(portal_kubeconfig(plane).read_text())
        for inner, names in (
            (config["clusters"][0]["cluster"], ["certificate-authority"]),
            (config["users"][0]["user"], ["client-certificate", "client-key"]),
        ):
            for name in names:
                (tmp_path / name).write_bytes(base64.b64decode(inner.pop(f"{name}-data")))
                inner[name] = name
        (tmp_path / "config").write_text(yaml.safe_dump(config))
        how = ["--kubeconfig", str(tmp_path / "config"), "--default", "--business-line", "qunarcorp.flight"]
        for _ in range(2):
            said = run(*how, "--title", "Plane", "--set", "quota={count/pods: '9'}")
            assert said.endswith(f"The portal may do all that it needs. {UNSERVED}\n"), said
        row = Cloud.objects.get(kind="kubernetes")
        assert (row.revision, row.title, row.is_default, row.settings) == (
            1,
            "Plane",
            True,
            {"portal": own_label(), "quota": {"count/pods": "9"}},
        )
        assert place_of(people.flight).cloud == "plane"
        Cloud.objects.filter(kind="kubernetes").update(is_default=False)
        Cloud.objects.create(kind="kubernetes", name="chosen", title="Chosen by an administrator", is_default=True)
        run("--default")
        row.refresh_from_db()
        assert not row.is_default
        Cloud.objects.filter(kind="kubernetes").exclude(pk=row.pk).delete()
        run("--default")
        run("--set", "store_seconds=5")
        row.refresh_from_db()
        assert (row.revision, row.title, row.is_default) == (2, "Plane", True)
        assert row.settings == {
            "portal": own_label(),
            "quota": {"count/pods": "9"},
            "store_seconds": 5,
        }
        verbs = list(Event.objects.order_by("pk").values_list("verb", "actor_name"))
        assert verbs == [
            ("kubernetes.registered", "portal"),
            ("org.placed", "portal"),
            ("kubernetes.changed", "portal"),
            ("kubernetes.changed", "portal"),
        ]

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            ((), "Give a kubeconfig, or choose"),
            (("--kubeconfig", "/nonexistent"), "cannot be read"),
            (("--in-cluster", "--business-line", "no.where"), "no business line no.where"),
            (("--in-cluster", "--set", "nonsense=1"), "spec.settings.nonsense: There is no such field."),
            (("--in-cluster", "--set", "store_seconds"), "write NAME=VALUE"),
            (("--in-cluster", "--set", "store_seconds=-1"), "At least 0"),
        ],
    )
    def test_what_is_wrong_is_said(self, run: Callable[..., str], people: Any, arguments: Any, sentence: str) -> None:
        with pytest.raises(CommandError) as caught:
            run(*arguments)
        assert sentence in str(caught.value)

    def test_outside_of_a_pod_there_is_no_service_account(self, run: Callable[..., str], people: Any) -> None:
        assert "no usable credentials" in run("--in-cluster")
