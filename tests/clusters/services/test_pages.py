"""The pages of services, made of rows: nothing is started here."""

import datetime as dt
import json
import re
import socket

import pytest
from django.test import Client
from django.utils import timezone

from clusters.catalog.models import ServingRuntime
from clusters.model_registry import drift
from clusters.runs.models import Cluster
from clusters.services import actions
from clusters.services.models import Replica, Revision, RevisionDrift, Rollout, Service, ServiceMinute, ServiceToken
from tests.api.client import api_of

pytestmark = pytest.mark.django_db(transaction=True)
URL = "/services/ops-demo/digits"
FORM = {
    "name": "digits", "appcode": "ops-demo", "model": "digits@champion", "image": "python", "flavor": "small", "least": "1",
    "most": "2", "target": "4", "idle_after": "300", "follow": "automatic", "kind": "canary", "weight": "10", "minutes": "10",
    "promote": "automatic", "when_full": "wait", "cpu_flavor": "", "keep_warm": "60", "runtime": "portal", "environment": "",
    "command": "", "env": "", "request_seconds": "60",
}  # fmt: skip


@pytest.fixture
def catalogue(page_catalogue):
    """Adds the image that serves the models."""
    from clusters.catalog.models import Image

    Image.objects.create(name="python", title="Python", environment="/usr", container="")


@pytest.fixture
def page(people):
    """page("bob", URL) → its HTML; page("bob", URL, {…}) posts."""

    def get(who, url, data=None, status=200):
        client = Client()
        client.force_login(getattr(people, who))
        answer = client.get(url) if data is None else client.post(url, data)
        assert answer.status_code == status, answer.content.decode()[:2000]
        return answer if status in (302, 304) else answer.content.decode()

    return get


@pytest.fixture
def nobody():
    """A port at which no server listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture
def asked(people, service, nobody):
    """A canary under way that has had requests for three minutes, with one replica per revision."""
    version = service.revisions.get().version.model.versions.get(number=2)
    old = service.revisions.get()
    new = Revision.objects.create(
        service=service, number=2, version=version, model="digits/2", spec=old.spec, weight=10, wanted=1
    )
    Revision.objects.filter(pk=old.pk).update(weight=90)
    rollout = service.rollouts.get()
    Rollout.objects.filter(pk=rollout.pk).update(phase="Promoted", finished_at=timezone.now())
    Rollout.objects.create(
        service=service, number=2, kind="canary", from_revision=old, to_revision=new, weight=10, phase="Comparing",
        phase_since=timezone.now() - dt.timedelta(minutes=3), judge_at=timezone.now() + dt.timedelta(minutes=7),
        created_by=people.bob, reason="better",
    )  # fmt: skip
    Service.objects.filter(pk=service.pk).update(phase="Running", revision_count=2, rollout_count=2)
    for slot, revision in ((1, old), (2, new)):
        Replica.objects.create(
            service=service,
            revision=revision,
            slot=slot,
            state="serving",
            address=f"127.0.0.1:{nobody}",
            served_at=timezone.now(),
        )
    now = timezone.now().replace(second=0, microsecond=0)
    for n in (1, 2, 3):
        for revision, errors in ((old, 0), (new, 6)):
            ServiceMinute.objects.create(
                service=service, revision=revision, router="one", minute=now - n * dt.timedelta(minutes=1), requests=120,
                errors=errors, latency=[0] * 10 + [120] + [0] * 30,
            )  # fmt: skip
    return service


def test_nobody_is_led_to_a_service_before_there_is_one(page):
    text = page("bob", "/services")
    assert "No services yet" in text
    assert 'href="/services/new"' in text
    assert 'href="/services/new"' not in page("victor", "/services")


def test_a_list_says_of_each_service_what_answers_and_how_it_does(page, asked):
    text = page("bob", "/services")
    for said in ("digits-ops-demo.serve.", "digits/1", "<b>90 %</b>", "2 of 2", "Canary: comparing", "2.50 %"):
        assert said in text, said
    assert "Nothing found" in page("bob", "/services?search=nothing")
    assert "Nothing found" in page("bob", "/services?phase=Failed")


def test_more_services_are_not_more_queries(page, asked, people, service_manifest, django_assert_max_num_queries):
    for n in range(5):
        made = actions.create_service(service_manifest(f"more-{n}"), acting_user=people.bob)
        Replica.objects.create(service=made, revision=made.revisions.get(), slot=1)
    client = Client()
    client.force_login(people.bob)
    client.get("/services/rows")
    with django_assert_max_num_queries(24):
        assert client.get("/services/rows").content.count(b"more-") >= 5
    with django_assert_max_num_queries(40):
        client.get(f"{URL}/live")


def test_a_form_makes_a_service_and_keeps_what_was_typed_where_it_is_wrong(page, model):
    text = page("bob", "/services/new?appcode=ops-demo&model=digits@champion")
    assert 'value="digits@champion"' in text
    wrong = page("bob", "/services/new", FORM | {"least": "3", "most": "2", "flavor": "absent", "keep_warm": "a lot"})
    assert "a lot" in wrong
    assert wrong.count('class="errorlist"') >= 1
    more = page("bob", "/services/new", FORM | {"least": "3"})
    assert "At least 3 are more than at most 2." in more
    answer = page("bob", "/services/new", FORM, status=302)
    assert answer["Location"] == URL
    assert Service.objects.get().spec["rollout"]["kind"] == "canary"
    taken = page("bob", "/services/new", FORM)
    assert "already has a service" in taken


def test_a_preview_says_what_it_takes_and_how_to_do_the_same(page, model):
    text = page("bob", "/services/preview", FORM)
    assert "It begins with version 1 of digits" in text
    assert "curl -X POST" in text
    assert "/api/v1/appcodes/ops-demo/services" in text
    assert "Still needed: Name" in page("bob", "/services/preview", FORM | {"name": ""})
    assert "no model" in page("bob", "/services/preview", FORM | {"model": "absent@champion"}).lower()


def test_a_page_shows_the_canary_beside_what_it_is_compared_with(page, asked):
    before = timezone.now() - dt.timedelta(minutes=20)
    for revision in asked.revisions.all():
        ServiceMinute.objects.create(service=asked, revision=revision, router="one", minute=before, requests=5000)
    text = page("bob", URL)
    assert text.count('<td data-label="Requests" class="num">360</td>') == 2, "of the minutes in which it is compared"
    for said in ("Canary", "digits/2", "Worse so far:", "Promote", "revision 2", "Per 1,000", "better"):
        assert said in text, said
    seen = page("victor", URL)
    for button in ("Promote", "Roll back", "Deploy", "Delete"):
        assert f"{button}</button>" not in seen
        assert f"{button}…</button>" not in seen
    page("mallory", URL, status=404)


def test_a_page_is_sent_again_only_where_something_changed(people, asked):
    client = Client()
    client.force_login(people.bob)
    first = client.get(f"{URL}/head")
    assert client.get(f"{URL}/head", headers={"If-None-Match": first["ETag"]}).status_code == 304


def test_what_is_charted_is_a_file_too(page, asked):
    lines = page("victor", f"{URL}/minutes").splitlines()
    assert lines[0].startswith("minute,revision,copies,requests,errors")
    assert len(lines) == 7
    assert ",120,6,0," in lines[1] + lines[2]


def test_drift_is_said_in_words_and_shown_beside_the_sample(page, people, asked):
    edges, expected = [0.5], [0.5, 0.5]
    said = [("age", [900, 100]), ("income", [700, 300]), ("city", [500, 500]), ("rare", [100, 0])]
    columns = [
        drift.Column(tensor=name, column=0, kind="input", edges=edges, expected=expected, seen=seen).document()
        for name, seen in said
    ]
    revision, now = asked.revisions.get(number=1), timezone.now()
    RevisionDrift.objects.create(revision=revision, hour=now - dt.timedelta(hours=1), rows=1200, columns=columns)
    RevisionDrift.objects.create(revision=revision, hour=now, rows=3, columns=[])
    text = page("bob", URL)
    for words in ('drifted">large', 'moved">moderate', 'stable">stable', 'stable">too few', "in 1 column."):
        assert words in text
    assert "up to 0.5: 50% in the sample, 90% seen; above 0.5: 50% in the sample, 10% seen" in text
    newest, before = api_of(people.victor).get("/appcodes/ops-demo/services/digits/drift")[1]["items"]
    assert (newest["rows"], newest["columns"], before["revision"], before["rows"]) == (3, [], 1, 1200)
    assert {each["tensor"]: each["word"] for each in before["columns"]} == {
        "age": "large", "income": "moderate", "city": "stable", "rare": "too few",
    }  # fmt: skip


def test_a_token_is_shown_once(page, service):
    made = page("bob", f"{URL}/tokens", {"name": "checkout", "per_second": "50", "at_once": "", "days": ""})
    row = ServiceToken.objects.get()
    shown = made.partition('<div class="secret"><code>')[2].partition("<")[0]
    assert shown.startswith(row.begins)
    assert len(shown) > 40
    assert shown not in page("bob", f"{URL}/tokens")
    wrong = page("bob", f"{URL}/tokens", {"name": "checkout", "per_second": "none", "at_once": "", "days": "3"})
    assert "errorlist" in wrong
    page("victor", f"{URL}/tokens", status=403)
    page("bob", f"{URL}/tokens/remove", {"token": "checkout"}, status=302)
    assert not ServiceToken.objects.exists()


def test_what_it_takes_is_said_before_a_version_is_deployed(page, asked):
    assert "Version 3" in page("bob", f"{URL}/deploy")
    typed = {"version": "3", "kind": "canary", "weight": "20", "minutes": "5", "promote": "by-hand", "reason": "try"}
    text = page("bob", f"{URL}/deploy/preview", typed)
    assert "1 replica more" in text
    assert "20 % of the requests for 5 min" in text
    assert "somebody has to promote it" in text
    assert "errorlist" in page("bob", f"{URL}/deploy", typed | {"weight": "100"})
    page("bob", f"{URL}/deploy", typed, status=302)
    assert Rollout.objects.get(number=3).reason == "try"


def test_a_button_asks_before_it_does(page, asked):
    assert "Its replicas end" in page("bob", f"{URL}/disable", {})
    asked.refresh_from_db()
    assert asked.desired == "running"
    page("bob", f"{URL}/disable", {"confirmed": "yes"}, status=302)
    asked.refresh_from_db()
    assert asked.desired == "ended"
    page("victor", f"{URL}/enable", {"confirmed": "yes"}, status=403)
    page("bob", f"{URL}/delete", {"confirmed": "yes"}, status=302)
    page("bob", URL, status=404)


def test_both_protocols_are_given_as_commands_and_who_does_not_answer_is_said_so(page, asked, people):
    versions = asked.revisions.get(number=1).version
    versions.sample = {"instances": [[1.0, 2.0], [3.0, 4.0]]}
    versions.signature = {"inputs": [{"name": "x", "dtype": "float32", "shape": [None, 2]}], "outputs": []}
    versions.save()
    text = page("bob", f"{URL}/try").replace("&quot;", '"').replace("&#x27;", "'")
    assert "/v1/models/digits:predict" in text
    assert "/v2/models/digits/infer" in text
    sent = {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [[1.0, 2.0], [3.0, 4.0]]}
    assert json.dumps({"inputs": [sent]}) in text
    # Without a sample the request is made of the signature, in both protocols.
    versions.sample = None
    versions.save()
    text = page("bob", f"{URL}/try").replace("&quot;", '"').replace("&#x27;", "'")
    assert '>{"instances": [[0.0, 0.0]]}</textarea>' in text
    assert json.dumps({"inputs": [{**sent, "shape": [1, 2], "data": [[0.0, 0.0]]}]}) in text
    assert "not JSON" in page("bob", f"{URL}/try/send", {"body": "{"})
    asked.replicas.filter(slot=1).update(
        cluster=Cluster.objects.create(appcode=people.ops, name="digits-1", spec={"roles": {}}, created_by=people.bob)
    )
    assert "Nobody listens" in page("bob", f"{URL}/try/send", {"body": "{}"})
    page("victor", f"{URL}/try/send", {"body": "{}"}, status=403)


def test_the_form_offers_runtimes_that_serve_the_model_and_the_page_asks_as_they_are_asked(page, asked):
    ServingRuntime.objects.update(enabled=True)
    ServingRuntime.objects.create(
        name="own", title="Own", formats=["saved-model"], protocols=["openai-v1"], command="own", enabled=True
    )

    def offered(text):
        found = re.search(r'<select name="runtime".*?</select>', text, re.DOTALL)
        return re.findall(r'<option value="([^"]*)"[^>]*>([^<]*)<', found[0])

    fitting = [
        ("own", "Own"),
        ("portal", "The portal&#x27;s own server"),
        ("tensorflow-serving", "TensorFlow Serving (not on this machine)"),
    ]
    assert offered(page("bob", "/services/new?appcode=ops-demo&model=digits@champion")) == fitting
    assert len(offered(page("bob", "/services/new?appcode=ops-demo"))) == 5
    # The form always sends an image, which a runtime that is a container ignores.
    text = page("bob", "/services/preview", {**FORM, "name": "more", "runtime": "tensorflow-serving"})
    assert "“TensorFlow Serving” is a container, and this machine runs none" in text
    page("bob", f"{URL}/change", {**FORM, "runtime": "own"}, status=302)
    text = page("bob", f"{URL}/try")
    assert "/v1/chat/completions" in text
    assert ":predict" not in text


def test_the_history_says_who_and_why(page, asked):
    text = page("victor", f"{URL}/history")
    for said in ("better", "bob", "canary", "service.created"):
        assert said in text, said
    assert "digits@champion" in page("victor", f"{URL}/manifest")
