"""What this app reports to those below: usage to billing, users of a datastore."""

from billing import extension_points as billing_points
from clusters import contributions
from clusters.cluster import actions
from clusters.runs.models import Cluster, Run
from datastores.models import Datastore


def test_services_and_volumes_go_on_until_somebody_ends_them(db, catalogue, people, manifest):
    service, limited, batch = (
        actions.create_cluster(manifest(name, **spec), acting_user=people.bob).current_run_id
        for name, spec in (
            ("service", {"mode": "service"}),
            ("limited", {"mode": "service", "timeLimit": 3600}),
            ("batch", {"mode": "batch"}),
        )
    )
    assert Run.objects.count() == 3
    keys = [f"run {service}", f"run {limited}", f"run {batch}", "volume 7", "run 999999999", "ranker 3", "run x", ""]
    assert contributions.without_end(keys) == {f"run {service}", "volume 7"}
    assert list(billing_points.without_end) == [contributions.without_end]


def test_a_datastore_is_written_where_it_is_output_or_home_of_its_appcode(db, people):
    own, theirs = (
        Datastore.objects.create(appcode=appcode, name="data", kind="s3", spec={}, secret="x")
        for appcode in (people.ops, people.flight)
    )
    theirs.shares.create()
    specs = {
        "reads": {"input": "data"}, "writes": {"output": "data"}, "lives": {"home": "data"},
        "reads-theirs": {"input": "flight-demo/data"},
    }  # fmt: skip
    for name, spec in specs.items():
        whole = {"framework": "tensorflow", "input": None, "output": None, "home": None, **spec}
        Cluster.objects.create(appcode=people.ops, name=name, spec=whole)
    found = contributions.clusters_using([own, theirs])
    assert {use.name: use.writes for use in found[own.pk]} == {"reads": False, "writes": True, "lives": True}
    assert {use.name: use.writes for use in found[theirs.pk]} == {"ops-demo/reads-theirs": False}
