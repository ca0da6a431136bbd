"""A kind of cloud that the portal does not know: it has only the driver beside this file and an entry in `kinds.DRIVERS`."""

from __future__ import annotations

import pytest

from clusters.cloud_admin import actions as cloud_actions
from clusters.clouds import gpu_usage, kinds
from clusters.clouds.drivers.base import Cloud as Driver
from clusters.clouds.drivers.base import KeepsVolumes
from clusters.clouds.models import Cloud
from clusters.cluster import actions
from clusters.runs import reconcile
from clusters.runs.models import Cluster, Run
from clusters.runs.status.observe import save_capacity
from portal.errors import Conflict, Invalid
from portal.models import Event
from tests.api.client import api_of
from tests.clusters.clouds.third.driver import MACHINES, ThirdCloud
from tests.clusters.conftest import Loop

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def third(catalogue, people, monkeypatch):
    """The third cloud, registered as the default."""
    driver: type[Driver] = ThirdCloud
    monkeypatch.setitem(kinds.DRIVERS, driver.kind, driver)
    MACHINES.clear()
    wanted = cloud_actions.Wanted(
        "attic", driver.kind, "The attic", {"machine": "a"}, default=True, server="attic.example", credentials="secret"
    )
    return cloud_actions.register(wanted, acting_user=people.root)


@pytest.fixture
def root(client, people):
    client.force_login(people.root)
    return client


def test_a_cluster_from_its_creation_to_its_end(third, people, manifest, root):
    loop, bob = Loop("attic"), api_of(people.bob)
    body = manifest("demo", "exec sleep 600", workers=1).model_dump(mode="json", exclude_none=True, by_alias=True)
    status, made = bob.post("/appcodes/ops-demo/clusters", body)
    assert status == 201, made
    cluster = Cluster.objects.get()
    run = loop.until_phase(cluster, "Running")
    assert (run.cloud, run.tasks.count()) == ("attic", 2)
    assert b"attic/ops" in root.get("/").content
    assert bob.get("/appcodes/ops-demo/clusters/demo/runs/1/tasks/master/0/log")[0] == 200

    status, refused = bob.post("/appcodes/ops-demo/clusters/demo/runs/1/tasks/master/0/exec", {"argv": ["true"]})
    assert (status, refused["detail"]) == (409, "Where this runs no commands can be run inside tasks.")

    actions.disable(cluster, acting_user=people.bob)
    run = loop.until_phase(cluster, "Stopped")
    assert run.gone
    actions.delete_cluster(cluster, acting_user=people.bob)
    reconcile.purge(cluster.pk)
    cluster.refresh_from_db()
    assert cluster.purged


def test_administrators_see_what_it_has_and_what_it_lacks(third, people, root):
    save_capacity("attic", ThirdCloud("attic", MACHINES["a"]).capacity())
    gpu_usage.measure("attic")
    page = root.get("/admin/clouds").content.decode()
    assert "The attic" in page
    assert "attic.example" in page
    assert "Without volumes, commands inside tasks, measured GPUs, what tasks use of their machines." in page
    assert "Clouds of this kind do not tell how busy GPUs are." in page
    assert "/admin/clouds/attic/disable" in page
    assert "/admin/clouds/attic/edit" not in page, "its form would be Kubernetes'"
    assert "/admin/clouds/attic/test" not in page, "nothing can be tried"
    lines = {line["businessLine"]: line["runsOn"] for line in api_of(people.root).get("/placements")[1]["items"]}
    assert set(lines.values()) == {"attic"}
    assert api_of(people.root).get("/kubernetes")[1]["items"] == []


def test_administrators_disable_place_and_remove_it(third, people, root, manifest):
    answer = root.post("/admin/clouds/attic/disable", follow=True).content.decode()
    assert "What takes no new runs cannot be the default." in answer
    root.post("/admin/clouds/local/default")
    root.post("/admin/clouds/place", {"line": "qunarcorp.ops", "cloud": "attic"})
    root.post("/admin/clouds/attic/disable")
    with pytest.raises(Invalid, match=r"qunarcorp\.ops runs on The attic, which takes no new runs"):
        actions.create_cluster(manifest(), acting_user=people.bob)
    with pytest.raises(Conflict, match=r"qunarcorp\.ops would have no place any more"):
        cloud_actions.remove(Cloud.objects.get(name="attic"), acting_user=people.root)
    root.post("/admin/clouds/place", {"line": "qunarcorp.ops", "cloud": ""})
    root.post("/admin/clouds/attic/remove")
    assert not Cloud.objects.filter(name="attic").exists()
    verbs = list(Event.objects.filter(object="third attic").order_by("pk").values_list("verb", flat=True))
    assert verbs == ["third.registered", "third.changed", "third.changed", "third.removed"]


def test_a_datastore_says_that_it_has_no_volumes(third, people):
    volume = {"size": "10Gi", "storage_class": "fast", "access_mode": "ReadWriteMany"}
    body = {"kind": "datastore", "metadata": {"name": "disk"}, "spec": {"volume": volume}}
    status, answer = api_of(people.alice).post("/appcodes/ops-demo/datastores", body)
    assert status == 422
    assert "The attic, which has no volumes; choose a datastore of kind S3." in str(answer)


def test_what_it_closes_is_closed_to_webhooks_too(third):
    from clusters.contributions import closed_networks

    assert "93.184.216.0/24" in closed_networks()


@pytest.mark.parametrize("kind", [*kinds.DRIVERS, ThirdCloud.kind])
def test_what_a_driver_says_of_itself_is_what_it_can_do(kind):
    driver = kinds.DRIVERS.get(kind, ThirdCloud)
    assert driver.kind == kind
    assert ("volume" in driver.mounts) == issubclass(driver, KeepsVolumes)


def test_new_credentials_are_used_from_the_next_call_on(third, people):
    from clusters.clouds import registry
    from clusters.clouds.drivers.base import CloudError

    assert registry.cloud("attic").list().items == ()
    cloud_actions.change(third, cloud_actions.manifest_of(third, credentials="wrong"), acting_user=people.root)
    with pytest.raises(CloudError, match="does not know these credentials"):
        registry.cloud("attic")
    assert not Run.objects.exists()
