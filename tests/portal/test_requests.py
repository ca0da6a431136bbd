"""Owners' requests and administrators' answers: their course, mail, end, and races between two of them."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from django.core import mail
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.http import Http404
from django.test import Client
from django.utils import timezone

from billing import mails
from billing.budgets import actions as budget_actions
from billing.mails import Mail
from billing.models import Budget
from datastores.actions import create_datastore
from datastores.specs import DatastoreManifest
from portal import events
from portal.actions import appcodes, requests
from portal.errors import Conflict, Invalid
from portal.manifests.appcode import Answered, AppcodeManifest, Granted, Quota, Wanted
from portal.models import Appcode, Event, QuotaRequest
from portal.terms import Terms

pytestmark = pytest.mark.django_db


def in_days(days: int) -> dt.date:
    return timezone.now().date() + dt.timedelta(days=days)


def wanted(gpus: int | None = None, expires: dt.date | None = None, **more: Any) -> Wanted:
    said: dict[str, Any] = {"quota": {"gpus": gpus}, **more} | ({"expires": expires} if expires else {})
    return Wanted.model_validate(said)


def manifest(code: str = "npe", **spec: Any) -> AppcodeManifest:
    given = {"orgNode": "qunarcorp.ops", "owners": ["alice"], "emails": ["team@example.com"]} | spec
    return AppcodeManifest.model_validate({"metadata": {"name": code}, "spec": given})


def of(appcode: Appcode) -> Terms:
    return requests.terms_of(Appcode.objects.get(pk=appcode.pk))


def verbs() -> list[str]:
    return list(Event.objects.filter(verb__startswith="appcode.").order_by("id").values_list("verb", flat=True))


def subjects() -> list[str]:
    return list(Mail.objects.order_by("id").values_list("subject", flat=True))


# A living appcode


def test_a_living_appcode_keeps_what_it_has_until_everything_changes_at_once(people: Any) -> None:
    end = in_days(100)
    asked = requests.ask(
        people.ops,
        wanted(16, end, quota={"gpus": 16, "storage": 2048, "budget": "500.00"}, reason="Two models"),
        acting_user=people.alice,
    )
    assert asked.terms == Terms(16, 2048, Decimal(500), end)
    assert of(people.ops) == Terms(8, 1024)
    assert Appcode.objects.get(pk=people.ops.pk).standing == "active"
    given = Granted(revision=1, quota=Quota(gpus=12))
    requests.approve(people.ops, given, acting_user=people.root)
    assert of(people.ops) == Terms(12, 2048, Decimal(500), end)
    budget = Budget.objects.get()
    assert (budget.appcode, budget.policy, budget.by_administrator) == (people.ops, "block", True)
    assert verbs() == ["appcode.requested", "appcode.approved"]
    approved = Event.objects.get(verb="appcode.approved")
    assert approved.message == (
        f"approved: 12 GPUs, 2,048 GiB of volumes, 500.00 USD a month, until {end}; asked for were 16 GPUs, 2,048 GiB of "
        f"volumes, 500.00 USD a month, until {end}"
    )
    assert approved.data == {
        "gpus": 12, "storage": 2048, "budget": "500.00", "expires": str(end), "borrow": 0, "weight": 1,
    }  # fmt: skip


def test_a_budget_that_is_there_keeps_its_policy_and_is_not_taken_away(people: Any) -> None:
    budget_actions.add(people.ops, budget_actions.Asked(Decimal(100), "stop_all", 30), acting_user=people.alice)
    requests.ask(people.ops, wanted(9), acting_user=people.alice)
    requests.approve(people.ops, Granted(revision=1), acting_user=people.root)
    # The request did not include the budget, so it still belongs to the owners.
    assert Budget.objects.values_list("amount", "policy", "by_administrator").get() == (100, "stop_all", False)
    requests.ask(people.ops, wanted(quota={"budget": "250"}), acting_user=people.alice)
    requests.approve(people.ops, Granted(revision=2), acting_user=people.root)
    assert Budget.objects.values_list("amount", "policy", "by_administrator").get() == (250, "stop_all", True)


def test_what_is_not_asked_for_stays_when_it_changes_meanwhile(people: Any) -> None:
    mine = budget_actions.add(people.ops, budget_actions.Asked(Decimal(40), "notify", 60), acting_user=people.alice)
    requests.ask(people.ops, wanted(quota={"gpus": 16, "budget": "40"}), acting_user=people.alice)
    budget_actions.change(mine, budget_actions.Asked(Decimal(60), "notify", 60), acting_user=people.alice)
    more = manifest("ops-demo", quota={"storage": 4096}, expires=str(in_days(90)))
    appcodes.change_appcode(people.ops, more, acting_user=people.root)
    with pytest.raises(Conflict, match="changed meanwhile"):
        requests.approve(people.ops, Granted(revision=1), acting_user=people.root)
    requests.approve(people.ops, Granted(revision=2), acting_user=people.root)
    assert of(people.ops) == Terms(16, 4096, Decimal(60), in_days(90))
    assert not Budget.objects.get().by_administrator


def test_what_an_administrator_gives_alone_ends_a_request_for_just_that(people: Any) -> None:
    requests.ask(people.ops, wanted(16), acting_user=people.alice)
    appcodes.change_appcode(people.ops, manifest("ops-demo", quota={"gpus": 16}), acting_user=people.root)
    row = QuotaRequest.objects.get()
    assert (row.state, row.decided_by) == ("approved", people.root)


def test_there_is_one_request_and_what_is_sent_twice_is_one(people: Any) -> None:
    for _ in range(3):
        requests.ask(people.ops, wanted(16), acting_user=people.alice)
    assert verbs() == ["appcode.requested"]
    assert requests.ask(people.ops, wanted(12), acting_user=people.alice).revision == 2
    assert QuotaRequest.objects.count() == 1
    requests.withdraw(people.ops, acting_user=people.alice)
    for act in (
        lambda: requests.withdraw(people.ops, acting_user=people.alice),
        lambda: requests.approve(people.ops, Granted(revision=2), acting_user=people.root),
        lambda: requests.refuse(people.ops, Answered(revision=2, note="no"), acting_user=people.root),
    ):
        with pytest.raises(Conflict):
            act()
    assert of(people.ops) == Terms(8, 1024)
    assert requests.ask(people.ops, wanted(12), acting_user=people.alice).revision == 3


def test_changes_are_requested_and_the_request_is_sent_again(people: Any) -> None:
    requests.ask(people.ops, wanted(64), acting_user=people.alice)
    requests.request_changes(people.ops, Answered(revision=1, note="Say for what."), acting_user=people.root)
    with pytest.raises(Conflict, match="not sent it again"):
        requests.request_changes(people.ops, Answered(revision=1, note="Well?"), acting_user=people.root)
    # The same numbers, now with a reason.
    again = requests.ask(people.ops, wanted(64, reason="Image search"), acting_user=people.alice)
    assert (again.state, again.note, again.revision, again.decided_by) == ("waiting", "", 2, None)
    assert verbs() == ["appcode.requested", "appcode.changes-requested", "appcode.requested"]


def test_who_may_ask_and_who_may_decide(people: Any) -> None:
    for user in (people.bob, people.victor, people.mallory):
        with pytest.raises(PermissionDenied):
            requests.ask(people.ops, wanted(9), acting_user=user)
    requests.ask(people.ops, wanted(9), acting_user=people.alice)
    for user in (people.alice, people.bob, people.mallory):
        for act in (
            lambda user=user: requests.approve(people.ops, Granted(revision=1), acting_user=user),
            lambda user=user: requests.refuse(people.ops, Answered(revision=1, note="no"), acting_user=user),
            lambda user=user: requests.request_changes(people.ops, Answered(revision=1, note="no"), acting_user=user),
        ):
            with pytest.raises(Http404):
                act()
    assert of(people.ops).gpus == 8


def test_a_disabled_appcode_is_neither_asked_for_nor_enabled_by_an_approval(people: Any) -> None:
    requests.ask(people.ops, wanted(9), acting_user=people.alice)
    appcodes.disable_appcode(people.ops, "over", acting_user=people.root)
    with pytest.raises(Conflict, match="enable it first"):
        requests.approve(people.ops, Granted(revision=1), acting_user=people.root)
    with pytest.raises(Conflict, match="disabled"):
        requests.ask(people.ops, wanted(10), acting_user=people.alice)
    appcodes.enable_appcode(people.ops, acting_user=people.root)
    assert requests.approve(people.ops, Granted(revision=1), acting_user=people.root).gpu_quota == 9


def test_a_day_that_has_gone_by_while_it_waited_is_not_given(people: Any) -> None:
    requests.ask(people.ops, wanted(9, in_days(3)), acting_user=people.alice)
    QuotaRequest.objects.update(expires_on=in_days(-1))
    with pytest.raises(Invalid, match="expires: Choose a day from"):
        requests.approve(people.ops, Granted(revision=1), acting_user=people.root)
    assert requests.approve(people.ops, Granted(revision=1, expires=None), acting_user=people.root).expires_on is None


# A new one


def test_a_new_appcode_lasts_as_long_as_the_setting_says(people: Any, settings: Any) -> None:
    made = appcodes.request_appcode(manifest(), acting_user=people.alice)
    assert made.expires_on == in_days(365)
    assert appcodes.request_appcode(manifest("npf", expires=None), acting_user=people.alice).expires_on is None
    settings.APPCODE_DAYS = 0
    assert appcodes.request_appcode(manifest("npg"), acting_user=people.alice).expires_on is None


def test_who_decides_has_read_the_newest_version_of_a_new_appcode(people: Any) -> None:
    made = appcodes.request_appcode(manifest(), acting_user=people.alice)
    appcodes.change_appcode(made, manifest(remark="Something else"), acting_user=people.alice)
    with pytest.raises(Conflict, match="changed meanwhile"):
        requests.approve(made, Granted(revision=1), acting_user=people.root)
    # The request was saved again without changes.
    appcodes.change_appcode(made, manifest(remark="Something else"), acting_user=people.alice)
    assert requests.approve(made, Granted(revision=2), acting_user=people.root).state == "active"


def test_a_new_appcode_can_be_withdrawn_and_says_so(people: Any) -> None:
    made = appcodes.request_appcode(manifest(), acting_user=people.alice)
    requests.withdraw(made, acting_user=people.alice)
    row = Appcode.objects.get(pk=made.pk)
    assert (row.standing, row.why_not) == (
        "withdrawn",
        "The request for npe was withdrawn; its owners can send it again.",
    )
    assert appcodes.change_appcode(row, manifest(), acting_user=people.alice).standing == "requested"


# Mail


@pytest.fixture
def outbox(settings: Any) -> Any:
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    return mail


def test_each_step_is_told_to_the_addresses_and_the_owners(people: Any, outbox: Any) -> None:
    requests.ask(people.ops, wanted(16, reason="Two models"), acting_user=people.alice)
    requests.request_changes(people.ops, Answered(revision=1, note="Fewer."), acting_user=people.root)
    requests.ask(people.ops, wanted(12), acting_user=people.alice)
    requests.refuse(people.ops, Answered(revision=2, note="Not this month."), acting_user=people.root)
    requests.ask(people.ops, wanted(10), acting_user=people.alice)
    requests.approve(people.ops, Granted(revision=3), acting_user=people.root)
    assert mails.send_due() == 9
    told = [each for each in outbox.outbox if each.to == ["ops-demo@example.com", "alice@example.com"]]
    assert [each.subject for each in told] == [
        "Request for ops-demo", "Changes to the request for ops-demo are requested", "Request for ops-demo",
        "The request for ops-demo is refused", "Request for ops-demo", "ops-demo is approved",
    ]  # fmt: skip
    assert (
        "alice asks for 16 GPUs, 1,024 GiB of volumes, the same budget, without end.\n\nWhy: Two models" in told[0].body
    )
    assert "Until then it has 8 GPUs, 1,024 GiB" in told[0].body
    assert "\n\nFewer.\n\nIts owners can change it and send it again:\n\n" in told[1].body
    assert told[1].body.endswith("/appcodes/ops-demo/request\n")
    assert "\n\nNot this month.\n\n" in told[3].body
    assert "It has 10 GPUs, 1,024 GiB of volumes, no budget, without end now." in told[5].body
    decide = [each for each in outbox.outbox if each.to == ["root@example.com"]]
    assert len(decide) == 3
    assert decide[0].body.endswith("/admin/appcodes\n")
    assert "for ops-demo (qunarcorp.ops)" in decide[0].body


def test_what_an_administrator_changes_alone_is_told_too(people: Any) -> None:
    mine = manifest("ops-demo", quota={"gpus": 3})
    appcodes.change_appcode(people.ops, mine, acting_user=people.root)
    assert subjects() == ["ops-demo may use something else"]
    appcodes.change_appcode(people.ops, manifest("ops-demo"), acting_user=people.root)
    assert len(subjects()) == 1


def test_a_request_that_fails_tells_nothing(people: Any) -> None:
    with pytest.raises(Invalid):
        requests.ask(people.ops, wanted(8), acting_user=people.alice)
    assert (subjects(), verbs()) == ([], [])


# The end


def give_end(appcode: Appcode, days: int) -> None:
    requests.ask(appcode, wanted(expires=in_days(days)), acting_user=Appcode.objects.get(pk=appcode.pk).members.first())
    row = QuotaRequest.objects.get(appcode=appcode)
    from portal.models import User

    requests.approve(appcode, Granted(revision=row.revision), acting_user=User.objects.get(username="root"))


def test_the_end_is_announced_three_times_and_told_once_each(people: Any) -> None:
    give_end(people.flight, 30)
    before, now = len(subjects()), timezone.now()
    looks = [now + dt.timedelta(days=day) for day in range(40) for _ in range(3)]
    assert sum(map(requests.tell_expiry, looks)) == 4
    assert subjects()[before:] == [
        "flight-demo expires in 14 days", "flight-demo expires in 3 days", "flight-demo expires in 1 day",
        "flight-demo has expired",
    ]  # fmt: skip
    assert verbs()[-4:] == ["appcode.expiring"] * 3 + ["appcode.expired"]
    assert set(Event.objects.filter(verb__contains="expir").values_list("actor_name", flat=True)) == {"portal"}
    last = Mail.objects.latest("id")
    assert last.to == ["flight-demo@example.com", "mallory@example.com"]
    assert "Nothing new starts in it. What runs in it goes on; its data, volumes and invoices stay." in last.text


def test_a_portal_that_was_off_sends_the_notice_that_holds_alone(people: Any) -> None:
    give_end(people.flight, 30)
    before = len(subjects())
    assert requests.tell_expiry(timezone.now() + dt.timedelta(days=28)) == 1
    assert subjects()[before:] == ["flight-demo expires in 2 days"]


def test_who_gives_a_near_end_is_not_told_of_it_at_once(people: Any) -> None:
    give_end(people.flight, 10)
    assert requests.tell_expiry() == 0
    assert requests.tell_expiry(timezone.now() + dt.timedelta(days=7)) == 1


def test_a_renewal_is_told_as_one_and_announced_anew(people: Any) -> None:
    give_end(people.flight, 2)
    requests.tell_expiry(timezone.now() + dt.timedelta(days=5))
    Appcode.objects.filter(pk=people.flight.pk).update(expires_on=in_days(-3))
    expired = Appcode.objects.get(pk=people.flight.pk)
    assert (expired.standing, expired.expired) == ("expired", True)
    assert requests.proposed_terms(expired, timezone.now()).expires == in_days(365)
    give_end(people.flight, 60)
    assert subjects()[-1] == "flight-demo is renewed"
    assert verbs()[-1] == "appcode.renewed"
    assert Appcode.objects.get(pk=people.flight.pk).standing == "active"
    assert requests.tell_expiry(timezone.now() + dt.timedelta(days=47)) == 1


def test_in_an_expired_appcode_no_datastore_is_made(people: Any) -> None:
    Appcode.objects.filter(pk=people.ops.pk).update(expires_on="2026-01-31")
    store = {"metadata": {"name": "data", "appcode": "ops-demo"}, "spec": {"nfs": {"server": "nas", "path": "/x"}}}
    with pytest.raises(Invalid) as caught:
        create_datastore(DatastoreManifest.model_validate(store), acting_user=people.bob)
    [error] = caught.value.errors
    assert error.path == ("metadata", "appcode")
    assert error.message == (
        "ops-demo has expired; its last day was 2026-01-31. Its owners can ask for its renewal on its page."
    )


# Two at once


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Returns what each call returned or raised. All start at the same moment, each on its own connection."""
    gate, results = threading.Barrier(len(calls)), [None] * len(calls)

    def run(n: int, call: Callable[[], Any]) -> None:
        try:
            gate.wait()
            results[n] = call()
        except (Conflict, Invalid) as error:
            results[n] = error  # type: ignore[call-overload]
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(n, call)) for n, call in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.django_db(transaction=True)
def test_of_two_administrators_one_decides(people: Any) -> None:
    requests.ask(people.ops, wanted(quota={"gpus": 16, "budget": "10"}), acting_user=people.alice)
    done = at_once(
        lambda: requests.approve(people.ops, Granted(revision=1, quota=Quota(gpus=10)), acting_user=people.root),
        lambda: requests.approve(people.ops, Granted(revision=1, quota=Quota(gpus=12)), acting_user=people.root),
        lambda: requests.refuse(people.ops, Answered(revision=1, note="no"), acting_user=people.root),
    )
    assert sum(isinstance(each, Conflict) for each in done) == 2
    assert len([verb for verb in verbs() if verb != "appcode.requested"]) == 1
    row = QuotaRequest.objects.get()
    assert of(people.ops).gpus == {"approved": of(people.ops).gpus, "refused": 8}[row.state]
    assert Budget.objects.exists() == (row.state == "approved") == (of(people.ops).gpus in (10, 12))


@pytest.mark.django_db(transaction=True)
def test_what_is_given_was_read_even_when_it_is_changed_at_that_moment(people: Any) -> None:
    for n in range(8):
        requests.ask(people.ops, wanted(20 + n), acting_user=people.alice)
        revision, before = QuotaRequest.objects.get().revision, of(people.ops).gpus
        given, _ = at_once(
            lambda revision=revision: requests.approve(people.ops, Granted(revision=revision), acting_user=people.root),
            lambda n=n: requests.ask(people.ops, wanted(100 + n), acting_user=people.alice),
        )
        # Either the version read was approved and the change is a new request, or the change came first and nothing was approved.
        assert of(people.ops).gpus == (before if isinstance(given, Conflict) else 20 + n)
        row = QuotaRequest.objects.get()
        assert (row.state, row.gpus, row.revision) == ("waiting", 100 + n, revision + 1)


@pytest.mark.django_db(transaction=True)
def test_two_loops_at_once_tell_an_end_once(people: Any) -> None:
    give_end(people.flight, 30)
    later = timezone.now() + dt.timedelta(days=20)
    assert sum(at_once(*[lambda: requests.tell_expiry(later)] * 4)) == 1
    assert verbs().count("appcode.expiring") == 1


@pytest.mark.django_db(transaction=True)
def test_whoever_dies_while_telling_has_told_nothing_and_the_next_tells(people: Any, monkeypatch: Any) -> None:
    give_end(people.flight, 30)
    later = timezone.now() + dt.timedelta(days=20)
    recorded = events.record

    def dies(*args: Any, **kwargs: Any) -> None:
        recorded(*args, **kwargs)
        raise KeyboardInterrupt

    with monkeypatch.context() as dying, pytest.raises(KeyboardInterrupt):
        dying.setattr(events, "record", dies)
        requests.tell_expiry(later)
    assert "appcode.expiring" not in verbs()
    assert requests.tell_expiry(later) == 1


# Pages


def test_an_owner_asks_on_a_page_and_nothing_typed_is_lost(client: Client, people: Any) -> None:
    client.force_login(people.alice)
    assert "Request quota" in client.get("/appcodes/ops-demo").content.decode()
    typed = {
        "gpus": "many",
        "storage": "4096",
        "budget": "1.001",
        "expires": "2001-01-01",
        "reason": "Two <b>models</b>",
    }
    answer = client.post("/appcodes/ops-demo/request", typed)
    assert set(answer.context["form"].errors) == {"gpus", "budget"}
    page = answer.content.decode()
    assert 'value="many"' in page
    assert "Two &lt;b&gt;models" in page
    answer = client.post("/appcodes/ops-demo/request", typed | {"gpus": "9", "budget": "5"})
    assert set(answer.context["form"].errors) == {"expires"}
    answer = client.post("/appcodes/ops-demo/request", typed | {"gpus": "9", "budget": "5", "expires": ""}, follow=True)
    page = answer.content.decode()
    assert "Your request is sent" in page
    assert "4,096 GiB" in page
    assert "Withdraw…" in page
    same = {"gpus": "8", "storage": "1024", "budget": "", "expires": "", "reason": ""}
    assert "has this already" in client.post("/appcodes/ops-demo/request", same).content.decode()


def test_an_administrator_decides_from_the_list(client: Client, people: Any) -> None:
    appcodes.request_appcode(manifest(), acting_user=people.alice)
    requests.ask(people.ops, wanted(16), acting_user=people.alice)
    client.force_login(people.root)
    page = client.get("/admin/appcodes").content.decode()
    assert "<code>ops</code>" in page
    assert [card.appcode.code for card in client.get("/admin/appcodes").context["cards"]] == ["npe", "ops-demo"]
    typed = {"revision": "1", "gpus": "-1", "expires": "x", "note": "", "from": "list"}
    answer = client.post("/appcodes/npe/approve", typed)
    assert answer.context["cards"][0].form.errors.keys() == {"gpus", "expires"}
    assert 'value="-1"' in answer.content.decode()
    answer = client.post("/appcodes/npe/refuse", typed | {"gpus": "4", "expires": ""})
    assert answer.context["cards"][0].form.errors.keys() == {"note"}
    answer = client.post("/appcodes/npe/approve", typed | {"gpus": "4", "expires": ""})
    assert answer["Location"] == "/admin/appcodes"
    made = Appcode.objects.get(code="npe")
    assert (made.state, made.gpu_quota, made.expires_on) == ("active", 4, None)
    answer = client.post("/appcodes/ops-demo/request-changes", {"revision": "1", "note": "Fewer."})
    assert answer["Location"] == "/appcodes/ops-demo"
    client.force_login(people.alice)
    page = client.get("/appcodes/ops-demo").content.decode()
    assert "Fewer." in page
    assert "Change and send again" in page


def test_the_list_costs_the_same_for_any_number_of_requests(
    client: Client, people: Any, make_appcode: Any, django_assert_max_num_queries: Any
) -> None:
    client.force_login(people.root)
    for n in range(3):
        made = make_appcode(f"many-{n}", org="qunarcorp.ops", namespace="ops", owner=people.alice)
        requests.ask(made, wanted(9 + n), acting_user=people.alice)
    with django_assert_max_num_queries(20) as few:
        client.get("/admin/appcodes")
    for n in range(3, 12):
        made = make_appcode(f"many-{n}", org="qunarcorp.ops", namespace="ops", owner=people.alice)
        requests.ask(made, wanted(9 + n), acting_user=people.alice)
    with django_assert_max_num_queries(len(few)):
        client.get("/admin/appcodes")


def test_what_the_line_has_is_added_up(client: Client, people: Any, make_appcode: Any) -> None:
    other = make_appcode("other", org="qunarcorp.ops", namespace="ops", owner=people.bob, quota=5)
    budget_actions.add(other, budget_actions.Asked(Decimal(40), "notify", 60), acting_user=people.root)
    requests.ask(people.ops, wanted(16), acting_user=people.alice)
    client.force_login(people.root)
    [card] = client.get("/appcodes/ops-demo").context["cards"]
    assert (card.line.path, card.line_given.appcodes, card.line_given.gpus) == ("qunarcorp.ops", 2, 13)
    assert (card.line_given.budget, card.platform.given.gpus) == (40, 21)
    assert "as it is" not in client.get("/appcodes/ops-demo").content.decode(), "a budget of none that stays is none"


def test_a_new_one_is_withdrawn_on_its_page_and_sent_again(client: Client, people: Any) -> None:
    appcodes.request_appcode(manifest(), acting_user=people.alice)
    client.force_login(people.alice)
    assert "Withdraw…" in client.get("/appcodes/npe").content.decode()
    page = client.post("/appcodes/npe/request/withdraw", follow=True).content.decode()
    assert "The request is withdrawn." in page
    assert "Change it and send it again." in page
    assert "Withdraw…" not in page
    assert client.get("/appcodes/npe/request")["Location"] == "/appcodes/npe/change"
    assert "Saving sends it again." in client.get("/appcodes/npe/change").content.decode()


@pytest.mark.parametrize(("days", "word"), [(-1, "has expired"), (0, "expires today"), (14, "expires in 14 days")])
def test_a_banner_says_what_comes(client: Client, people: Any, days: int, word: str) -> None:
    Appcode.objects.filter(pk=people.ops.pk).update(expires_on=in_days(days))
    for user, renewal in ((people.alice, "Request renewal"), (people.bob, "Its owners can ask for its renewal.")):
        client.force_login(user)
        for path in ("/appcodes/ops-demo", "/frame/expiry", "/frame/expiry?appcode=ops-demo"):
            page = client.get(path).content.decode()
            assert f"ops-demo {word}; its last day" in page
            assert renewal in page
    client.force_login(people.mallory)
    assert "ops-demo" not in client.get("/frame/expiry").content.decode()
    Appcode.objects.filter(pk=people.ops.pk).update(expires_on=in_days(15))
    client.force_login(people.alice)
    assert "ops-demo" not in client.get("/frame/expiry").content.decode()


def test_each_word_of_the_list_finds_its_appcodes(client: Client, people: Any) -> None:
    for n, code in enumerate(("changes", "refused", "withdrawn", "requested")):
        made = appcodes.request_appcode(manifest(f"is-{code}", remark=str(n)), acting_user=people.alice)
        if code == "changes":
            requests.request_changes(made, Answered(revision=1, note="no"), acting_user=people.root)
        elif code == "refused":
            requests.refuse(made, Answered(revision=1, note="no"), acting_user=people.root)
        elif code == "withdrawn":
            requests.withdraw(made, acting_user=people.alice)
    Appcode.objects.filter(pk=people.flight.pk).update(expires_on=in_days(-1))
    client.force_login(people.root)
    found = {}
    for word in ("requested", "changes-requested", "refused", "withdrawn", "active", "expired", "disabled"):
        rows = client.get(f"/appcodes?state={word}").context["appcodes"]
        assert {row.standing for row in rows} <= {word}
        found[word] = [row.code for row in rows]
    assert found == {
        "requested": ["is-requested"], "changes-requested": ["is-changes"], "refused": ["is-refused"],
        "withdrawn": ["is-withdrawn"], "active": ["ops-demo"], "expired": ["flight-demo"], "disabled": [],
    }  # fmt: skip
