"""The usage that this app reports to billing."""

from billing import extension_points as billing_points
from clusters import contributions
from clusters.cluster import actions
from clusters.runs.models import Run


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
