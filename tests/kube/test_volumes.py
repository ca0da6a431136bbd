"""Volumes on a real API server: bound, mounted by one run after the other, grown, and deleted with their datastore.

No provisioner runs here, so tests create what a StorageClass would; the mounts are simulated.
"""

from __future__ import annotations

import datetime as dt
import secrets
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from clusters.clouds.drivers.base import (
    AccessMode,
    CloudError,
    CloudRefused,
    Environment,
    Mount,
    NfsSource,
    Plan,
    VolumeRef,
    VolumeSource,
)
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.kubernetes.render import cache, names
from clusters.clouds.drivers.kubernetes.repair import upkeep
from portal.network.outgoing import Rules
from tests.kube.following import Following, cloud_of, hand_over, registered
from tests.kube.plane import Object, Plane
from tests.kube.plans import bucket, plan, role, run_ref
from tests.kube.test_loop import Loop

pytestmark = pytest.mark.kube

CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
VOLUMES = "/api/v1/persistentvolumes"


@pytest.fixture
def space(plane: Plane, cloud: KubernetesCloud) -> Iterator[str]:
    name = f"line-{secrets.token_hex(4)}"
    yield name
    plane.request("DELETE", f"/api/v1/namespaces/{name}")


def test_an_environment_that_no_run_has_and_none_was_started_from_for_long_is_removed(
    plane: Plane, cloud: KubernetesCloud, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "UNUSED_AGAIN", 0.2)
    cloud._settings = replace(cloud._settings, package_index="http://10.209.0.1:3141/simple", environment_class="none")
    claims = f"/api/v1/namespaces/{space}/persistentvolumeclaims"
    runs = [run_ref(space), run_ref(space), run_ref(space)]
    for run, digest in zip(runs, ("fresh", "used", "old"), strict=True):
        cloud.apply(plan(role("master"), run=run, environment=Environment("torch:1", digest, "", "", "import this")))
    made = plane.until(claims, lambda found: len(found) == 3)
    by_key = {each["metadata"]["labels"][names.ENVIRONMENT]: name for name, each in made.items()}
    owners = [plane.request("GET", f"/api/v1/namespaces/{space}/configmaps/{names.owner_name(run)}") for run in runs]
    fresh, used, old = (by_key[owner["metadata"]["labels"][names.ENVIRONMENT]] for owner in owners)
    for name in (used, old):
        plane.request("PATCH", f"{claims}/{name}", {"metadata": {"annotations": {names.USED: "2020-01-01"}}})
    with Following(cloud) as following:
        cloud.delete(runs[0])
        cloud.delete(runs[2])
        plane.until(claims, lambda found: old not in found)
        assert set(plane.until(claims, lambda found: len(found) == 2)) == {fresh, used}
        # Starting a run from it resets its last use to today.
        cloud.apply(
            plan(role("master"), run=run_ref(space), environment=Environment("torch:1", "used", "", "", "import this"))
        )
        cloud.delete(runs[1])
        following.until(lambda: following.is_gone(runs[1]))
        (again,) = [each for name, each in plane.until(claims, lambda found: used in found).items() if name == used]
        assert again["metadata"]["annotations"][names.USED] > "2026"


def test_of_cached_inputs_beyond_their_space_the_oldest_goes_and_never_one_that_a_run_reads(
    plane: Plane, cloud: KubernetesCloud, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "UNUSED_AGAIN", 0.2)
    # Each claim requests 3 GiB.
    cloud._settings = replace(cloud._settings, cache_class="none", cache_space="7Gi")
    claims = f"/api/v1/namespaces/{space}/persistentvolumeclaims"

    def reading(version: str) -> Plan:
        mount = Mount("/elearn/input", True, bucket("digits"), cached=True, disk_bytes=1_500_000_000)
        mounts = (replace(mount, version=f"digits@{version}", digest=version),)
        return plan(role("master"), run=run_ref(space), mounts=mounts)

    made = {version: reading(version) for version in ("read", "oldest", "fresh")}
    names_of = {version: cache.claim_name(each, cloud._settings) for version, each in made.items()}
    for version in ("read", "oldest"):
        cloud.apply(made[version])
    # While runs read all others, no run gets more room than there is.
    with pytest.raises(CloudError, match="leave no room for this one"):
        cloud.apply(made["fresh"])
    cloud.apply(made["oldest"])
    # With `or_copied` the run copies the data instead, and keeps doing so on later calls even if there is room by then.
    either = reading("fresh")
    either = replace(either, mounts=(replace(either.mounts[0], or_copied=True),))
    for space_now in ("7Gi", "99Gi"):
        cloud._settings = replace(cloud._settings, cache_space=space_now)
        cloud.apply(either)
    jobs = plane.request("GET", f"/apis/batch/v1/namespaces/{space}/jobs")["items"]
    claims_of = {
        job["metadata"]["labels"][names.RUN_ID]: str(job["spec"]["template"]["spec"]["volumes"]) for job in jobs
    }
    assert names_of["read"] in claims_of[str(made["read"].run.id)]
    assert names_of["fresh"] not in claims_of[str(either.run.id)]
    cloud._settings = replace(cloud._settings, cache_space="7Gi")
    assert set(plane.until(claims, lambda found: len(found) == 2)) == {names_of["read"], names_of["oldest"]}
    cloud._settings = replace(cloud._settings, cache_space="9Gi")
    cloud.apply(made["fresh"])
    assert set(plane.until(claims, lambda found: len(found) == 3)) == set(names_of.values())
    cloud._settings = replace(cloud._settings, cache_space="7Gi")
    for version, days in (("read", 29), ("oldest", 28)):
        old = (dt.datetime.now(dt.UTC) - dt.timedelta(days=days)).isoformat()
        plane.request("PATCH", f"{claims}/{names_of[version]}", {"metadata": {"annotations": {names.USED: old}}})
    with Following(cloud) as following:
        for version in ("oldest", "fresh"):
            cloud.delete(made[version].run)
            following.until(lambda version=version: following.is_gone(made[version].run))
        left = plane.until(claims, lambda found: len(found) == 2)
        assert set(left) == {names_of["read"], names_of["fresh"]}
        # Another run with the same data creates no further claim, and uses none that is about to be deleted.
        cloud.apply(reading("fresh"))
        assert set(plane.until(claims, lambda found: len(found) == 2)) == set(left)
    path, again = f"{claims}/{names_of['fresh']}", reading("fresh")
    plane.request("PATCH", path, {"metadata": {"finalizers": ["example.com/held"]}})
    plane.request("DELETE", path)
    with pytest.raises(CloudError, match="is being removed"):
        cloud.apply(again)
    plane.request("PATCH", path, {"metadata": {"finalizers": None}})
    plane.until(claims, lambda found: names_of["fresh"] not in found)
    cloud.apply(again)
    plane.until(claims, lambda found: names_of["fresh"] in found)


class Storage:
    """A StorageClass whose volumes `make` creates."""

    def __init__(self, plane: Plane, *, grows: bool) -> None:
        self.plane = plane
        self.name = f"ceph-{secrets.token_hex(4)}"
        body = {
            "metadata": {"name": self.name},
            "provisioner": "kubernetes.io/no-provisioner",
            "allowVolumeExpansion": grows,
        }
        plane.request("POST", CLASSES, body)

    def make(self, size: str = "20Gi", mode: AccessMode = "ReadWriteOnce") -> str:
        name = f"{self.name}-{secrets.token_hex(4)}"
        spec = {
            "capacity": {"storage": size},
            "accessModes": [mode],
            "storageClassName": self.name,
            "persistentVolumeReclaimPolicy": "Retain",
            "csi": {"driver": "rbd.csi.ceph.com", "volumeHandle": name},
        }
        self.plane.request("POST", VOLUMES, {"metadata": {"name": name}, "spec": spec})
        return name


@pytest.fixture
def storage(plane: Plane) -> Storage:
    return Storage(plane, grows=True)


def source(space: str, storage: Storage, mode: AccessMode = "ReadWriteOnce") -> VolumeSource:
    return VolumeSource(VolumeRef(7, space, "demo", "scratch"), storage.name, "20Gi", mode, "mnist/3")


def claims(space: str) -> str:
    return f"/api/v1/namespaces/{space}/persistentvolumeclaims"


def bound(plane: Plane, space: str) -> Object:
    found = plane.until(
        claims(space), lambda found: [claim["status"]["phase"] for claim in found.values()] == ["Bound"]
    )
    (claim,) = found.values()
    return claim


def test_a_volume_is_bound_and_goes_from_run_to_run(
    plane: Plane, cloud: KubernetesCloud, following: Following, space: str, storage: Storage
) -> None:
    volume = storage.make()
    mounts = (Mount("/elearn/output", False, source(space, storage)),)
    uids = []
    for run in (run_ref(space), run_ref(space)):
        cloud.apply(plan(role("master"), run=run, mounts=mounts))
        claim = bound(plane, space)
        uids.append(claim["metadata"]["uid"])
        assert claim["spec"]["volumeName"] == volume
        assert "ownerReferences" not in claim["metadata"]
        following.until(lambda run=run: len(following.of(run, "Running")) == 1)
        cloud.delete(run)
        following.until(lambda run=run: following.is_gone(run))
    assert uids[0] == uids[1]
    assert bound(plane, space)["metadata"]["name"] == "demo-scratch-7-data"


def test_one_for_many_is_mounted_by_many(
    plane: Plane, cloud: KubernetesCloud, following: Following, space: str, storage: Storage
) -> None:
    storage.make(mode="ReadWriteMany")
    run = run_ref(space)
    mounts = (Mount("/elearn/output", False, source(space, storage, "ReadWriteMany")),)
    cloud.apply(plan(role("master"), role("worker", 3), run=run, mounts=mounts))
    following.until(lambda: len(following.of(run, "Running")) == 4)
    cloud.delete(run)
    following.until(lambda: following.is_gone(run))


def test_it_grows_where_its_class_can(plane: Plane, cloud: KubernetesCloud, space: str, storage: Storage) -> None:
    storage.make("100Gi")
    wanted = source(space, storage)
    cloud.apply_volume(wanted)
    bound(plane, space)
    cloud.apply_volume(replace(wanted, size="40Gi"))
    cloud.apply_volume(replace(wanted, size="40Gi"))
    assert bound(plane, space)["spec"]["resources"]["requests"] == {"storage": "40Gi"}


def test_why_it_does_not_grow_is_told(plane: Plane, cloud: KubernetesCloud, space: str) -> None:
    rigid = Storage(plane, grows=False)
    rigid.make()
    wanted = source(space, rigid)
    cloud.apply_volume(wanted)
    bound(plane, space)
    with pytest.raises(CloudRefused, match="Its storage class cannot make a volume larger"):
        cloud.apply_volume(replace(wanted, size="40Gi"))
    with pytest.raises(CloudRefused, match="at most 1Ti here"):
        cloud.apply_volume(replace(wanted, size="2Ti"))
    cloud.apply_volume(wanted)


def test_one_that_waits_for_its_first_mount_grows_later(
    plane: Plane, cloud: KubernetesCloud, space: str, storage: Storage
) -> None:
    wanted = source(space, storage)
    cloud.apply_volume(wanted)
    with pytest.raises(CloudError, match="grows when a run has mounted it") as caught:
        cloud.apply_volume(replace(wanted, size="40Gi"))
    assert not isinstance(caught.value, CloudRefused)
    storage.make("100Gi")
    bound(plane, space)
    cloud.apply_volume(replace(wanted, size="40Gi"))


def test_it_goes_when_nobody_mounts_it_any_more(
    plane: Plane, cloud: KubernetesCloud, following: Following, space: str, storage: Storage
) -> None:
    storage.make()
    run, wanted = run_ref(space), source(space, storage)
    cloud.apply(plan(role("master"), run=run, mounts=(Mount("/elearn/output", False, wanted),)))
    following.until(lambda: len(following.of(run, "Running")) == 1)
    cloud.delete_volume(wanted.volume)
    claim = bound(plane, space)
    assert "deletionTimestamp" in claim["metadata"]
    assert len(following.of(run, "Running")) == 1
    cloud.delete(run)
    following.until(lambda: following.is_gone(run))
    plane.until(claims(space), lambda found: not found)
    cloud.delete_volume(wanted.volume)


def test_a_run_that_waits_for_its_volume_says_so(
    plane: Plane, cloud: KubernetesCloud, following: Following, space: str, storage: Storage
) -> None:
    run = run_ref(space)
    cloud.apply(plan(role("master"), run=run, mounts=(Mount("/elearn/output", False, source(space, storage)),)))
    following.until(lambda: any("its volume" in task.message for task in following.of(run, "Pending")))
    storage.make()
    following.until(lambda: len(following.of(run, "Running")) == 1)
    cloud.delete(run)
    following.until(lambda: following.is_gone(run))


def test_nobody_else_is_bound_to_the_volume_of_a_run(
    plane: Plane, cloud: KubernetesCloud, following: Following, space: str, namespace: str
) -> None:
    """Another claim may name it, from another namespace, even after the run's own claim is gone."""
    run = run_ref(space)
    cloud.apply(plan(role("master"), run=run, mounts=(Mount("/elearn/output", False, NfsSource("nfs.example", "/d")),)))
    bound(plane, space)
    name, behind = names.volume_name(run, 0), names.persistent_volume_name(run, 0)
    thief = {
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": behind,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    plane.request("POST", claims(namespace), thief)
    plane.request("DELETE", f"{claims(space)}/{name}")
    cloud.delete(run)
    # By now the controller has processed the other claim too, because it has processed the deletion of ours.
    following.until(lambda: following.is_gone(run))
    (claim,) = plane.request("GET", claims(namespace))["items"]
    assert claim["status"]["phase"] in ("Pending", "Lost")
    plane.until(VOLUMES, lambda found: behind not in found)


# -- with the portal's own loop ----------------------------------------------------------------------------------------


@pytest.fixture
def loop(plane: Plane, transactional_db: None, people: Any) -> Iterator[Loop]:
    from clusters.catalog.models import Flavor, Image
    from clusters.runs.models import Run

    Flavor.objects.create(name="small", title="Small", cpu_milli=100, memory_mb=128)
    Image.objects.create(
        name="tensorflow", title="TensorFlow", environment=sys.prefix, container="example/tensorflow:2.21"
    )
    portal = f"loop-{secrets.token_hex(4)}"
    registered(plane, "kubernetes", portal=portal, is_default=True)
    loop = Loop(plane, cloud_of(plane, portal))
    yield loop
    Run.objects.filter(gone=False).update(desired="ended", release_asked_at=None)
    loop.until(lambda: not Run.objects.filter(gone=False).exists())


def wish(kind: str, name: str, spec: dict[str, Any]) -> Any:
    from clusters.manifest.cluster import ClusterManifest
    from datastores.specs import DatastoreManifest

    model = ClusterManifest if kind == "cluster" else DatastoreManifest
    return model.model_validate({"kind": kind, "metadata": {"name": name, "appcode": "ops-demo"}, "spec": spec})


def cluster(name: str, workers: int = 0, **spec: Any) -> Any:
    roles = {"master": {"flavor": "small"}, "worker": {"flavor": "small", "count": workers}}
    return wish("cluster", name, {"image": "tensorflow", "command": "python train.py", "roles": roles, **spec})


def settle() -> None:
    from django.utils.timezone import now

    from clusters.volumes import lifecycle

    for volume_id in list(lifecycle.unsettled(now()).values_list("pk", flat=True)):
        lifecycle.settle(volume_id)


def test_a_datastore_s_volume_from_its_making_to_its_end(plane: Plane, loop: Loop, people: Any) -> None:
    from clusters.cluster import actions
    from clusters.runs.models import Run
    from datastores.actions import change_datastore, create_datastore, delete_datastore
    from datastores.models import Volume
    from portal.errors import Conflict, Invalid

    storage = Storage(plane, grows=True)
    storage.make("100Gi")
    spec = {"volume": {"storage_class": storage.name, "size": "20Gi"}}
    store = create_datastore(wish("datastore", "scratch", spec), acting_user=people.bob)
    with pytest.raises(Invalid, match="mounted by one task at a time") as several:
        actions.create_cluster(cluster("many", workers=2, output="scratch"), acting_user=people.bob)
    assert [error.path for error in several.value.errors] == [("spec", "output")]

    first = actions.create_cluster(cluster("first", output="scratch"), acting_user=people.bob)
    loop.until_phase(first, "Running")
    label = names.selector(portal=loop.cloud._settings.portal, volume_id=Volume.objects.get().pk)

    def claim() -> Object:
        found = plane.until(claims("ops"), lambda found: bool(found), labelSelector=label)
        return next(iter(found.values()))

    assert claim()["spec"]["resources"]["requests"] == {"storage": "20Gi"}
    second = actions.create_cluster(cluster("second", input="scratch"), acting_user=people.bob)
    loop.work()
    waiting = Run.objects.get(current_of=second)
    assert "mounted by one task at a time, and first has it" in waiting.wait_message

    spec["volume"]["size"] = "40Gi"
    change_datastore(store, wish("datastore", "scratch", spec), acting_user=people.bob)
    settle()
    assert claim()["spec"]["resources"]["requests"] == {"storage": "40Gi"}
    assert (Volume.objects.get().told_size, Volume.objects.get().trouble) == ("40Gi", "")

    actions.disable(first, acting_user=people.bob)
    loop.until_phase(first, "Stopped")
    Run.objects.filter(pk=waiting.pk).update(claimed_until=None)
    loop.until_phase(second, "Running")
    with pytest.raises(Conflict, match="used by"):
        delete_datastore(store, acting_user=people.bob, named="scratch")
    for each in (first, second):
        actions.delete_cluster(each, acting_user=people.bob)
    loop.until(lambda: not Run.objects.filter(gone=False).exists())
    delete_datastore(store, acting_user=people.bob, named="scratch")
    settle()
    plane.until(claims("ops"), lambda found: not found, labelSelector=label)
    assert not Volume.objects.exists()


def test_a_volume_costs_nothing_until_its_cloud_has_taken_a_run_that_mounts_it(
    plane: Plane, loop: Loop, people: Any
) -> None:
    from django.utils.timezone import now

    from billing.models import UsageSegment
    from clusters.clouds import registry
    from clusters.cluster import actions
    from clusters.runs.models import Run
    from datastores.actions import create_datastore
    from datastores.models import Volume

    storage = Storage(plane, grows=True)
    storage.make()
    # Now the namespace exists; then another portal takes it over.
    other = actions.create_cluster(cluster("other"), acting_user=people.bob)
    loop.until_phase(other, "Running")
    # The follower repairs namespaces in the background and would write its own name on this one again.
    loop.until(lambda: not (loop.cloud._namespaces.unsettled or loop.cloud._namespaces.settling))
    hand_over(plane, f"other-{secrets.token_hex(4)}", "ops")
    registry._kept.clear()  # As in another worker: this one has checked the namespace.
    spec = {"volume": {"storage_class": storage.name, "size": "20Gi"}}
    create_datastore(wish("datastore", "scratch", spec), acting_user=people.bob)
    refused = actions.create_cluster(cluster("refused", output="scratch"), acting_user=people.bob)
    loop.work()
    loop.work()  # It has a place.
    run = Run.objects.get(current_of=refused)
    assert "belongs to another portal" in run.refusal
    assert Volume.objects.get().told_at is None
    settle()
    assert not UsageSegment.objects.filter(storage_mb__gt=0).exists()
    loop.until(lambda: Run.objects.get(pk=run.pk).gone)

    hand_over(plane, loop.cloud._settings.portal, "ops")
    before = now().replace(microsecond=0)
    actions.deploy(refused, acting_user=people.bob)
    loop.until_phase(refused, "Running")
    metered = UsageSegment.objects.get(storage_mb__gt=0)
    assert (metered.storage_mb, metered.ended) == (20 * 1024, None)
    assert metered.started >= before


def test_growth_that_is_refused_is_told_and_not_tried_for_ever(plane: Plane, loop: Loop, people: Any) -> None:
    from clusters.cluster import actions
    from datastores.actions import change_datastore, create_datastore
    from datastores.models import Volume

    rigid = Storage(plane, grows=False)
    rigid.make()
    spec = {"volume": {"storage_class": rigid.name, "size": "20Gi"}}
    store = create_datastore(wish("datastore", "scratch", spec), acting_user=people.bob)
    made = actions.create_cluster(cluster("one", output="scratch"), acting_user=people.bob)
    loop.until_phase(made, "Running")
    spec["volume"]["size"] = "40Gi"
    change_datastore(store, wish("datastore", "scratch", spec), acting_user=people.bob)
    settle()
    volume = Volume.objects.get()
    assert (volume.told_size, volume.refused_size) == ("20Gi", "40Gi")
    assert volume.trouble == "Its storage class cannot make a volume larger."
    Volume.objects.update(tried_at=None)
    settle()
    assert Volume.objects.get().tried_at is None, "nothing was tried again"
    # Runs continue with the volume that exists.
    actions.disable(made, acting_user=people.bob)
    loop.until_phase(made, "Stopped")
    actions.deploy(made, acting_user=people.bob)
    loop.until_phase(made, "Running")


def test_a_volume_stays_where_it_was_made(plane: Plane, loop: Loop, people: Any) -> None:
    from clusters.cluster import actions
    from datastores.actions import create_datastore
    from portal.errors import Invalid
    from portal.models import OrgNode

    storage = Storage(plane, grows=True)
    storage.make()
    spec = {"volume": {"storage_class": storage.name, "size": "20Gi"}}
    create_datastore(wish("datastore", "scratch", spec), acting_user=people.bob)
    made = actions.create_cluster(cluster("one", output="scratch"), acting_user=people.bob)
    loop.until_phase(made, "Running")
    OrgNode.objects.filter(namespace="ops").update(namespace="ops-elsewhere")
    with pytest.raises(Invalid, match="lies on Kubernetes in namespace ops, where this does not run") as moved:
        actions.create_cluster(cluster("two", output="scratch"), acting_user=people.bob)
    assert [error.path for error in moved.value.errors] == [("spec", "output")]


@pytest.mark.usefixtures("loop")
def test_what_a_kubernetes_cluster_does_not_offer_is_refused_at_its_field(people: Any) -> None:
    from clusters.clouds.models import Cloud
    from datastores.actions import create_datastore
    from portal.errors import Invalid

    Cloud.objects.filter(kind="kubernetes").update(settings={"storage_classes": ["ceph-rbd"], "largest_volume": "10Gi"})
    spec = {"volume": {"storage_class": "other", "size": "20Gi"}}
    with pytest.raises(Invalid) as caught:
        create_datastore(wish("datastore", "scratch", spec), acting_user=people.bob)
    assert {error.path[-1]: error.message for error in caught.value.errors} == {
        "storage_class": "Kubernetes offers these storage classes: ceph-rbd.",
        "size": "A volume on Kubernetes has at most 10Gi.",
    }


@pytest.mark.usefixtures("loop")
def test_a_private_s3_server_that_nobody_opened_is_refused_at_its_field(people: Any, settings: Any) -> None:
    from clusters.clouds.models import Cloud
    from datastores.actions import create_datastore
    from portal.errors import Invalid

    settings.OUTGOING = Rules.read(["10.20.0.0/24"])
    Cloud.objects.filter(kind="kubernetes").update(settings={"storage_networks": ["10.20.0.0/24"]})
    keys = {"access_key": "some-key", "secret_key": "some-secret", "bucket": "models"}
    create_datastore(
        wish("datastore", "inside", {"s3": {"server": "http://10.20.0.7:9000", **keys}}), acting_user=people.bob
    )
    with pytest.raises(Invalid, match="ask an administrator to open this address") as caught:
        create_datastore(
            wish("datastore", "api", {"s3": {"server": "https://10.96.0.1", **keys}}), acting_user=people.bob
        )
    assert [error.path for error in caught.value.errors] == [("spec", "s3", "server")]


def test_a_volume_of_this_machine_is_a_folder_without_a_class(transactional_db: None, people: Any) -> None:
    from datastores.actions import create_datastore
    from portal.errors import Invalid

    fast = {"volume": {"size": "20Gi", "storage_class": "fast"}}
    with pytest.raises(Invalid, match="has no storage classes") as caught:
        create_datastore(wish("datastore", "scratch", fast), acting_user=people.bob)
    assert [error.path for error in caught.value.errors] == [("spec", "volume", "storage_class")]
    create_datastore(wish("datastore", "scratch", {"volume": {"size": "20Gi"}}), acting_user=people.bob)
