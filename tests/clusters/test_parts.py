"""Clusters that something created for itself: lists leave them out, and their end wakes their creator."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_part_is_listed_by_its_whole_alone_and_its_end_is_told_to_it(
    catalogue: None, people: Any, manifest: Any, settings: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clusters import tasks
    from clusters.cluster import actions
    from portal import wakeups
    from portal.models import Delivery, Event, Webhook

    settings.CLUSTERS_PER_APPCODE = 1
    people.bob.mail_phases = ["stopped"]
    people.bob.save()
    Webhook.objects.create(
        appcode=people.ops, name="all", url="https://example.com/", host="example.com", secret="x", kinds=["*"]
    )
    actions.create_cluster(manifest("whole"), acting_user=people.bob)
    part = actions.create_cluster(manifest("lr-1"), acting_user=people.bob, part_of="sweeps/lr")
    client.force_login(people.bob)

    def names(query: str = "") -> list[str]:
        return [each["metadata"]["name"] for each in client.get(f"/api/v1/clusters{query}").json()["items"]]

    assert (names(), names("?partOf=sweeps/lr"), names("?partOf=sweeps/l")) == (["whole"], ["lr-1"], [])
    assert b"lr-1" not in client.get("/clusters/rows").content
    assert b"lr-1" not in client.get("/clusters/rows?search=lr").content
    page = client.get("/clusters/ops-demo/lr-1")
    assert b'<a href="/sweeps/ops-demo/lr">lr</a>' in page.content

    told, sent = [], wakeups.send
    monkeypatch.setitem(tasks.WHOLES, "sweeps", lambda appcode, name: told.append((appcode, name)))

    def send(task: str, *keys: Any, once: str = "") -> None:
        if task == "clusters.tasks.advance":
            tasks.advance(*keys)
        else:
            sent(task, *keys, once=once)

    monkeypatch.setattr("clusters.wakeups.send", send)
    actions.cancel(part, acting_user=people.bob)
    assert told == [(part.appcode_id, "lr")]
    assert set(Delivery.objects.values_list("event__object", flat=True)) == {"cluster ops-demo/whole"}
    assert Event.objects.filter(object="cluster ops-demo/lr-1", data__part_of="sweeps/lr").count() == 4
    from billing.mails import Mail

    assert not Mail.objects.exists()
