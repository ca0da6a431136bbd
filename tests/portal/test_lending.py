"""What an appcode may borrow and its weight: who sets them, where a mistake is shown, and what administrators are told before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core import mail
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from billing import mails
from portal import extension_points
from portal.actions import requests
from portal.lending import Share, Stand, effect, promised
from portal.manifests.appcode import Granted, Quota, ShareSpec, Wanted
from portal.models import Appcode, Event
from tests.api.client import api_of

OTHERS = {"flight": Stand(56, 0, 2), "hotel": Stand(40, 8, 1)}


def has(code: str = "ops-demo") -> tuple[int, Share]:
    appcode = Appcode.objects.get(code=code)
    return appcode.gpu_quota, appcode.share


SAID = "The quotas of all appcodes together are"


@pytest.mark.parametrize(
    ("quotas", "pool", "expected"),
    [
        (120, 104, "120 of 104 GPUs: oversold. If all ask, each gets a part of its quota."),
        (104, 104, "104 of 104 GPUs: each is promised, and only what others leave is lent."),
        (96, 104, "96 of 104 GPUs: each is promised, and 8 belong to nobody and can always be lent."),
        (96, 0, "96 GPUs."),
        (1, None, "1 GPU."),
    ],
)
def test_what_quotas_are_worth(quotas: int, pool: int | None, expected: str) -> None:
    assert promised(quotas, pool) == f"{SAID} {expected}"


def test_before_saving_it_is_said_who_gains_and_who_loses() -> None:
    said = effect("ops", Stand(8, 0, 1), Stand(24, 16, 3), OTHERS, 104)
    assert said == (
        "The quotas of all appcodes together are 120 of 104 GPUs: oversold. If all ask, each gets a part of its quota.",
        "ops gains 16 GPUs of its own: whoever borrows them gives them back when it asks.",
        "It may hold 40 GPUs while nobody else needs them.",
        (
            "When everybody asks, ops gets 50 % of what is lent (weight 3 of 6) instead of 25 %; the others lose:"
            " flight 33 % instead of 50 %, hotel 17 % instead of 25 %."
        ),
    )
    said = effect("ops", Stand(24, 16, 3), Stand(8, 0, 0), OTHERS, 104)
    assert said[1:] == (
        "ops loses 16 GPUs of its own: what its runs hold beyond the quota counts as borrowed.",
        "It borrows nothing any more: its runs wait for its own quota.",
        (
            "When everybody asks, ops gets 0 % of what is lent (weight 0 of 3) instead of 50 %; the others gain:"
            " flight 67 % instead of 33 %, hotel 33 % instead of 17 %."
        ),
    )


stands = st.builds(Stand, st.integers(0, 100), st.integers(0, 100), st.integers(0, 1000))


@given(st.none() | stands, stands, st.dictionaries(st.sampled_from("abcdefgh"), stands), st.none() | st.integers(0, 99))
def test_every_change_has_its_sentences(
    before: Stand | None, after: Stand, others: dict[str, Stand], pool: int | None
) -> None:
    """Also without weights, without others, and of new appcodes."""
    for each in effect("ops", before, after, others, pool):
        assert each.endswith(".")
        assert "None" not in each


@pytest.mark.django_db
def test_administrators_set_it_by_rest_and_the_log_says_so(people: Any) -> None:
    document = api_of(people.alice).get("/appcodes/ops-demo")[1]
    assert document["spec"]["share"] == {"borrow": 0, "weight": 1}
    document["spec"]["share"] = {"borrow": 8, "weight": 3}
    status, answer = api_of(people.alice).put("/appcodes/ops-demo", document)
    assert status == 422
    assert {error["path"] for error in answer["errors"]} == {"spec.share.borrow", "spec.share.weight"}
    status, answer = api_of(people.root).put("/appcodes/ops-demo", document)
    assert (status, answer["spec"]["share"]) == (200, {"borrow": 8, "weight": 3})
    assert has() == (8, Share(8, 3))
    event = Event.objects.get(verb="appcode.changed")
    assert event.actor == people.root
    assert event.message == "changed may borrow, weight: may borrow 8 GPUs, weight 3"
    assert (event.data["borrow"], event.data["weight"]) == (8, 3)
    mails.send_due()
    assert "may borrow 8 GPUs, weight 3" in mail.outbox[-1].body
    # Owners send back what they read.
    document["spec"]["remark"] = "ours"
    assert api_of(people.alice).put("/appcodes/ops-demo", document)[0] == 200
    assert has() == (8, Share(8, 3))


@pytest.mark.django_db
@pytest.mark.parametrize(
    "share", [{"borrow": -1}, {"borrow": 100_001}, {"weight": 1001}, {"weight": "many"}, {"lend": 1}]
)
def test_a_mistake_is_shown_at_its_field(people: Any, share: dict[str, object]) -> None:
    document = api_of(people.root).get("/appcodes/ops-demo")[1]
    document["spec"]["share"] = share
    status, answer = api_of(people.root).put("/appcodes/ops-demo", document)
    name, value = next(iter(share.items()))
    assert (status, answer["errors"][0]["path"]) == (422, f"spec.share.{name}")
    if name != "lend":
        form = {"org_node": "qunarcorp.ops", "owners": "alice", "emails": "a@example.com", "resource_type": "gpu-cloud"}
        client = Client()
        client.force_login(people.root)
        page = client.post("/appcodes/ops-demo/change", form | {name: value})
        assert page.context["form"].errors.keys() == {name}
    assert has() == (8, Share())


@pytest.mark.django_db
def test_nobody_gives_themselves_a_share_with_a_new_appcode(people: Any) -> None:
    manifest = {
        "metadata": {"name": "ops-new"},
        "spec": {"orgNode": "qunarcorp.ops", "owners": ["alice"], "emails": ["a@example.com"], "share": {"borrow": 8}},
    }
    status, answer = api_of(people.alice).post("/appcodes", manifest)
    assert (status, [error["path"] for error in answer["errors"]]) == (422, ["spec.share.borrow"])
    assert api_of(people.root).post("/appcodes", manifest)[0] == 201
    assert has("ops-new") == (8, Share(8, 1))


@pytest.mark.django_db
def test_an_approval_gives_a_share_only_if_it_says_so(people: Any) -> None:
    Appcode.objects.filter(code="ops-demo").update(gpu_borrow=4, weight=2)
    requests.ask(people.ops, Wanted(quota=Quota(gpus=16)), acting_user=people.alice)
    requests.approve(people.ops, Granted(revision=1), acting_user=people.root)
    assert has() == (16, Share(4, 2))
    requests.ask(people.ops, Wanted(quota=Quota(gpus=24)), acting_user=people.alice)
    client = Client()
    client.force_login(people.root)
    page = client.get("/appcodes/ops-demo")
    assert [row[0] for row in page.context["cards"][0].rows] == [
        "gpus",
        "borrow",
        "weight",
        "storage",
        "budget",
        "expires",
    ]
    assert "ops-demo gains 8 GPUs of its own" in page.content.decode()
    client.post("/appcodes/ops-demo/approve", {"revision": 2, "gpus": "20", "borrow": "8", "weight": "0"})
    assert has() == (20, Share(8, 0))
    event = Event.objects.filter(verb="appcode.approved").latest("id")
    assert event.message.endswith("may borrow 8 GPUs, weight 0")
    assert (event.data["borrow"], event.data["weight"]) == (8, 0)
    requests.ask(people.ops, Wanted(quota=Quota(gpus=30)), acting_user=people.alice)
    requests.approve(people.ops, Granted(revision=3, share=ShareSpec(weight=5)), acting_user=people.root)
    assert has() == (30, Share(8, 5))


@pytest.mark.django_db
def test_the_queue_is_woken_when_more_may_be_borrowed(
    people: Any, django_capture_on_commit_callbacks: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[int] = []
    monkeypatch.setattr(extension_points, "given", extension_points.ExtensionPoint(woken.append))
    document = api_of(people.root).get("/appcodes/ops-demo")[1]
    document["spec"]["share"] = {"borrow": 8}
    with django_capture_on_commit_callbacks(execute=True):
        api_of(people.root).put("/appcodes/ops-demo", document)
    assert woken == [people.ops.pk]


@pytest.mark.django_db
@pytest.mark.parametrize("role", ["victor", "alice", "root"])
def test_members_see_it_and_only_administrators_get_fields(people: Any, role: str) -> None:
    Appcode.objects.filter(code="ops-demo").update(gpu_borrow=4, weight=7)
    client = Client()
    client.force_login(getattr(people, role))
    text = " ".join(client.get("/appcodes/ops-demo").content.decode().split())
    assert "4 GPUs, while nobody else needs them" in text
    assert "<dt>Weight</dt><dd>7 " in text
    form = client.get("/appcodes/ops-demo/change")
    assert (b'name="weight"' in form.content) == (role == "root")


@pytest.mark.django_db
def test_the_effect_follows_what_is_typed(people: Any, django_assert_max_num_queries: Any) -> None:
    client = Client()
    client.force_login(people.root)
    with django_assert_max_num_queries(9):
        text = client.get("/appcodes/ops-demo/share/effect?gpus=12&borrow=x&weight=3").content.decode()
    assert "ops-demo gains 4 GPUs of its own" in text
    assert "gets 75 % of what is lent (weight 3 of 4) instead of 50 %; the others lose: flight-demo 25 %" in text
