"""Webhooks in pages and REST: access, errors at their fields, and no secret is revealed."""

from __future__ import annotations

import ast
import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.utils import timezone

from portal import events
from portal.models import Delivery, Event, Webhook
from portal.network.outgoing import Rules
from portal.webhooks import actions, sending, specs
from portal.webhooks.specs import GROUPS, PLATFORM_GROUPS, WebhookManifest
from tests.api.client import api_of

pytestmark = pytest.mark.django_db
EVERYBODY = ("anonymous", "alice", "bob", "victor", "mallory", "root")
URL = "https://hooks.example.com/in/TOKEN-IN-THE-URL"
OPS = "/appcodes/ops-demo/webhooks"


def manifest(name: str = "chat", url: Any = URL, events: Any = ("run.*",), **spec: Any) -> dict[str, Any]:
    return {"kind": "webhook", "metadata": {"name": name}, "spec": {"url": url, "events": list(events), **spec}}


@pytest.fixture
def chat(people: Any) -> Webhook:
    """Creates a webhook of OPS with one delivery, and a platform webhook."""
    for appcode, person in ((people.ops, people.alice), (None, people.root)):
        read = WebhookManifest.model_validate(manifest())
        actions.create_webhook(read, appcode=appcode, acting_user=person)
    events.record(
        "run.failed", actor=people.alice, appcode="ops-demo", object="cluster ops-demo/show1", message="No.", run=1
    )
    return Webhook.objects.get(appcode=people.ops)


def who(*answers: int) -> dict[str, int]:
    return dict(zip(EVERYBODY, answers, strict=True))


OWNERS, ADMINISTRATORS = who(302, 200, 403, 403, 404, 200), who(302, 404, 404, 404, 404, 200)
DONE, DONE_BY_ADMINISTRATORS = who(302, 302, 403, 403, 404, 302), who(302, 404, 404, 404, 404, 302)
FORM = {"name": "second", "url": "https://example.com", "groups": "run.*", "enabled": "on"}


@pytest.mark.parametrize("name", EVERYBODY)
def test_actions_are_done_only_for_those_who_may(client: Client, people: Any, chat: Webhook, name: str) -> None:
    if name != "anonymous":
        client.force_login(getattr(people, name))
    before = Event.objects.count()
    for base, of in ((OPS, DONE), ("/admin/webhooks", DONE_BY_ADMINISTRATORS)):
        row = Delivery.objects.filter(webhook__appcode=chat.appcode if base == OPS else None).latest("pk")
        shown = {302: 200} if name != "anonymous" else {}
        expected = of[name]
        assert client.post(f"{base}/new", FORM).status_code == shown.get(expected, expected)
        assert client.post(f"{base}/chat/change", {**FORM, "groups": "cluster.*"}).status_code == expected
        assert client.post(f"{base}/chat/test").status_code == expected
        assert client.post(f"{base}/chat/rotate").status_code == shown.get(expected, expected)
        assert client.post(f"{base}/chat/deliveries/{row.uid}/again").status_code == expected
        assert client.post(f"{base}/chat/delete").status_code == expected
    told = list(Event.objects.order_by("id").values_list("verb", "actor_name"))[before:]
    verbs = ["created", "changed", "test", "rotated", "again", "deleted"]
    times = {"alice": 1, "root": 2}.get(name, 0)
    assert told == [(f"webhook.{verb}", name) for verb in verbs] * times
    if not times:
        assert Webhook.objects.filter(deleted_at=None, kinds=["run.*"]).count() == 2


OWN = lambda status: (status, 403, 403, 404, status, 401)  # noqa: E731
ADMIN = lambda status: (404, 404, 404, 404, status, 401)  # noqa: E731


def test_what_is_not_mine_and_what_does_not_exist_look_the_same(people: Any, chat: Webhook) -> None:
    mallory = api_of(people.mallory)
    answers = []
    for path in (f"{OPS}/chat", f"{OPS}/none", "/appcodes/xps-demo/webhooks/chat"):
        status, body = mallory.get(path)
        answers.append(
            (status, json.dumps(body).replace("ops-demo", "X").replace("xps-demo", "X").replace("none", "chat"))
        )
    assert len(set(answers)) == 1
    # The owner of another appcode cannot reach a delivery by its id either.
    uid = Delivery.objects.filter(webhook=chat).latest("pk").uid
    read = WebhookManifest.model_validate(manifest())
    actions.create_webhook(read, appcode=people.flight, acting_user=people.mallory)
    assert mallory.get(f"/appcodes/flight-demo/webhooks/chat/deliveries/{uid}")[0] == 404
    assert mallory.post(f"/appcodes/flight-demo/webhooks/chat/deliveries/{uid}/again")[0] == 404


# Secrets


def test_a_secret_is_told_once_and_kept_encrypted(people: Any) -> None:
    from django.db import connection

    alice = api_of(people.alice)
    status, made = alice.post(OPS, manifest())
    assert status == 201
    assert made["secret"].startswith("whsec_")
    _, rotated = alice.post(f"{OPS}/chat/rotate")
    assert rotated["secret"] != made["secret"]
    client = Client()
    client.force_login(people.alice)
    seen = [
        json.dumps(alice.get(OPS)[1]), json.dumps(alice.get(f"{OPS}/chat")[1]), client.get(OPS).content.decode(),
        client.get(f"{OPS}/chat").content.decode(), client.get(f"{OPS}/chat/change").content.decode(),
        client.get("/appcodes/ops-demo").content.decode(), json.dumps(list(Event.objects.values("message", "object", "data"))),
    ]  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute("SELECT url, secret, old_secret FROM portal_webhook")
        seen.append(str(cursor.fetchall()))
    for secret in (made["secret"], rotated["secret"]):
        assert not any(secret in text or secret.removeprefix("whsec_") in text for text in seen)
    assert "TOKEN-IN-THE-URL" not in seen[-1] + seen[-2] + seen[-3] + seen[2]


def test_the_page_after_the_form_shows_the_secret(client: Client, people: Any) -> None:
    client.force_login(people.alice)
    page = client.post(f"{OPS}/new", {**FORM, "kinds": "invoice.closed, budget.*"}, follow=True)
    webhook = Webhook.objects.get()
    assert webhook.secret in page.content.decode()
    assert page["Cache-Control"].startswith("max-age=0, no-cache, no-store")
    assert webhook.kinds == ["run.*", "invoice.closed", "budget.*"]
    form = client.get(f"{OPS}/second/change").content.decode()
    assert 'value="invoice.closed"' in form
    again = client.post(f"{OPS}/second/rotate").content.decode()
    webhook.refresh_from_db()
    assert webhook.secret in again


def test_nothing_secret_is_in_what_is_sent(people: Any, s3: Any, bucket: str) -> None:
    """Types and creates secrets of every kind, then searches all events of all kinds that follow."""
    from clusters.catalog.models import Flavor, Image
    from tests.api.client import manifest as cluster

    Flavor.objects.create(name="middle", title="Middle", cpu_milli=1000, memory_mb=2048)
    Flavor.objects.create(name="middle-1-gpu", title="Middle + 1 GPU", cpu_milli=1000, memory_mb=2048, gpus=1)
    Image.objects.create(name="tensorflow", title="TensorFlow", environment="/usr", container="example/tensorflow:2")
    root, alice = api_of(people.root), api_of(people.alice)
    assert root.post("/webhooks", manifest("all", events=["*"]))[0] == 201
    secrets = {s3.secret_key, "TOKEN-IN-THE-URL", "alice-password"}
    keys = {"server": s3.url, "bucket": bucket, "access_key": s3.access_key, "secret_key": s3.secret_key}
    store = {"kind": "datastore", "metadata": {"name": "in"}, "spec": {"s3": keys}}
    assert alice.post("/appcodes/ops-demo/datastores", store)[0] == 201
    assert alice.post("/appcodes/ops-demo/clusters", cluster(env={"PASSWORD": "env-secret-1"}))[0] == 201
    secrets.add("env-secret-1")
    secrets.add(alice.post(OPS, manifest())[1]["secret"])
    secrets.add(alice.post(f"{OPS}/chat/rotate")[1]["secret"])
    kubeconfig = "apiVersion: v1\nkind: Config\nusers: [{name: u, user: {token: kube-secret-1}}]\n"
    root.post(
        "/kubernetes", {"kind": "kubernetes-cluster", "metadata": {"name": "k"}, "spec": {"kubeconfig": kubeconfig}}
    )
    secrets.add("kube-secret-1")
    client = Client()
    client.force_login(people.alice)
    client.post("/profile", {"name": "laptop", "days": "5"})
    client.force_login(people.root)
    page = client.post("/admin/people/new", {"username": "newcomer", "email": "n@example.com"}).content.decode()
    secrets.add(page.partition('<div class="secret"><code>')[2].partition("<")[0])
    sent = [specs.body(sending.facts(row.event)).decode() for row in Delivery.objects.select_related("event")]
    kinds = {json.loads(body)["type"] for body in sent}
    assert {
        "datastore.created",
        "cluster.created",
        "webhook.created",
        "webhook.rotated",
        "token.made",
        "person.created",
    } <= kinds
    assert not [(secret, body) for secret in secrets for body in sent if secret in body]
    assert all(len(secret) > 8 for secret in secrets)


# Refusals


BAD = {
    "no URL": ({"url": ""}, "spec.url", "url"),
    "no TLS": ({"url": "http://example.com"}, "spec.url", "url"),
    "another scheme": ({"url": "ftp://example.com"}, "spec.url", "url"),
    "a file": ({"url": "file:///etc/passwd"}, "spec.url", "url"),
    "user and password": ({"url": "https://me:secret@example.com/"}, "spec.url", "url"),
    "an empty user": ({"url": "https://@example.com/"}, "spec.url", "url"),
    "a fragment": ({"url": "https://example.com/#x"}, "spec.url", "url"),
    "a line end": ({"url": "https://example.com/\r\nX: y"}, "spec.url", "url"),
    "a space": ({"url": "https://example.com/a b"}, "spec.url", "url"),
    "another alphabet": ({"url": "https://exämple.com/"}, "spec.url", "url"),
    "no host": ({"url": "https:///x"}, "spec.url", "url"),
    "a backslash": ({"url": "https://example.com\\@127.0.0.1/"}, "spec.url", "url"),
    "a port beyond": ({"url": "https://example.com:99999/"}, "spec.url", "url"),
    "port 0": ({"url": "https://example.com:0/"}, "spec.url", "url"),
    "half an IPv6 address": ({"url": "https://[::1/"}, "spec.url", "url"),
    "loopback": ({"url": "https://127.0.0.1/"}, "spec.url", "url"),
    "loopback by name": ({"url": "https://localhost/"}, "spec.url", "url"),
    "loopback in disguise": ({"url": "https://0x7f.1/"}, "spec.url", "url"),
    "loopback as a number": ({"url": "https://2130706433/"}, "spec.url", "url"),
    "IPv6 loopback": ({"url": "https://[::ffff:127.0.0.1]/"}, "spec.url", "url"),
    "metadata": ({"url": "https://169.254.169.254/latest"}, "spec.url", "url"),
    "a long URL": ({"url": "https://example.com/" + "x" * 500}, "spec.url", "url"),
    "a long name": ({"url": "https://" + "a." * 200 + "example/"}, "spec.url", "url"),
    "no events": ({"events": []}, "spec.events", "groups"),
    "odd events": ({"events": ["run.*", "Run.Failed"]}, "spec.events.1", "kinds"),
    "too many events": ({"events": [f"run.a{'b' * n}" for n in range(51)]}, "spec.events", "groups"),
    "a name in capitals": ({"name": "Chat"}, "metadata.name", "name"),
    "the form's own address": ({"name": "new"}, "metadata.name", "name"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_said_at_its_field(client: Client, people: Any, case: str) -> None:
    changes, path, field = BAD[case]
    status, answer = api_of(people.alice).post(OPS, manifest(**changes))
    assert (status, [error["path"] for error in answer["errors"]]) == (422, [path])
    client.force_login(people.alice)
    typed = {
        "name": "chat",
        "url": URL,
        "enabled": "on",
        "kinds": ", ".join(changes.get("events", ["run.*"])),
        **changes,
    }
    typed.pop("events", None)
    page = client.post(f"{OPS}/new", typed)
    assert page.status_code == 200
    # Errors of single typed kinds belong to their field, whatever is wrong with the list.
    assert set(page.context["form"].errors) <= {field, "kinds", "groups"}
    assert page.context["form"].errors
    assert not Webhook.objects.exists()


ODD_BODIES: list[Any] = [
    None, [], "x", 5, {}, {"metadata": None, "spec": {}}, {"metadata": [], "spec": {}}, {"metadata": {"name": 5}, "spec": {}},
    {"metadata": {"name": "chat"}, "spec": None}, {"metadata": {"name": "chat"}, "spec": []}, manifest(url=5),
    manifest(events="run.*"), manifest(events=[{"run.*": 1}]), manifest(events=[5, None, ["run.*"]]), manifest(enabled="maybe"),
    manifest(secret="whsec_mine"), {**manifest(), "metadata": {"name": "chat", "owner": "mallory"}},
    {**manifest(), "kind": "cluster"},
    manifest(url="https://" + "%00" * 9), manifest(url="https://[fe80::1%25eth0]/"), manifest(url="https://example.com:٣/"),
]  # fmt: skip


@pytest.mark.parametrize("body", ODD_BODIES, ids=[str(n) for n in range(len(ODD_BODIES))])
def test_odd_bodies_are_refused_with_a_path(people: Any, chat: Webhook, body: Any) -> None:
    alice = api_of(people.alice)
    for method, path in (("POST", OPS), ("PUT", f"{OPS}/chat")):
        status, answer = alice(method, path, body)
        assert status in (400, 422), (status, answer)
    chat.refresh_from_db()
    assert (chat.url, chat.kinds) == (URL, ["run.*"])


def test_odd_addresses_and_forms_break_nothing(client: Client, people: Any, chat: Webhook) -> None:
    alice = api_of(people.alice)
    deliveries = f"{OPS}/chat/deliveries"
    for query in (
        "?cursor=x",
        "?limit=0",
        "?limit=x",
        "?state=%00",
        "?type=%00",
        "?cursor=OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5",
    ):
        assert alice.get(deliveries + query)[0] == 422, query
    for path in ("/none", "/chat/deliveries/1", f"/chat/deliveries/{people.ops.pk:032x}", "/chat/test/x"):
        assert alice.get(OPS + path)[0] == 404, path
    client.force_login(people.alice)
    for query in (
        "?cursor=99999999999999999999999",
        "?cursor=%00",
        "?since=x",
        "?state=x",
        "?search=%00%25_",
        "?cursor=-1",
    ):
        assert client.get(f"{OPS}/chat{query}").status_code == 200, query
    before = Event.objects.count()
    for form in (
        {},
        {"name": "\0"},
        {**FORM, "groups": "nothing.*"},
        {**FORM, "kinds": "run.*\0"},
        {**FORM, "url": ["a", "b"]},
    ):
        page = client.post(f"{OPS}/new", form)
        assert page.status_code == 200
        assert page.context["form"].errors, form
    assert client.get(f"{OPS}/chat/test").status_code == 405
    assert client.get(f"{OPS}/chat/delete").status_code == 405
    assert Event.objects.count() == before


def test_what_a_receiver_answers_is_text_on_the_page_and_nothing_else(
    client: Client, people: Any, chat: Webhook
) -> None:
    said = "<script>alert(1)</script>"
    Delivery.objects.update(answer=said, error=said, headers={"webhook-id": said}, status=500, sent_at=chat.created_at)
    row = chat.deliveries.latest("pk")
    client.force_login(people.alice)
    for path in (f"{OPS}/chat", f"{OPS}/chat/deliveries/{row.uid}"):
        text = client.get(path).content.decode()
        assert said not in text
        assert "&lt;script&gt;" in text


def test_http_and_inner_networks_are_open_where_settings_say_so(people: Any, settings: Any) -> None:
    settings.WEBHOOK_HTTP, settings.OUTGOING = True, Rules.read(["10.20.0.0/16"])
    alice = api_of(people.alice)
    assert alice.post(OPS, manifest(url="http://10.20.3.4:8080/in"))[0] == 201
    assert alice.post(OPS, manifest("other", url="http://10.21.3.4/"))[0] == 422


def test_names_are_taken_once_and_there_is_an_end(people: Any, settings: Any) -> None:
    settings.WEBHOOKS_PER_APPCODE = 3
    alice = api_of(people.alice)
    for name in ("one", "two", "three"):
        assert alice.post(OPS, manifest(name))[0] == 201
    status, answer = alice.post(OPS, manifest("one"))
    assert (status, answer["errors"][0]["path"]) == (422, "metadata.name")
    status, answer = alice.post(OPS, manifest("four"))
    assert status == 409
    assert "3 webhooks already" in answer["detail"]
    assert alice.delete(f"{OPS}/two")[0] == 204
    assert alice.post(OPS, manifest("two"))[0] == 201, "the name of a deleted one is free"
    row = Webhook.objects.get(name="one")
    row.pk = None
    with pytest.raises(IntegrityError), transaction.atomic():
        row.save()


def test_a_change_is_told_and_the_same_again_is_not(people: Any, chat: Webhook) -> None:
    alice = api_of(people.alice)
    read = alice.get(f"{OPS}/chat")[1]
    before = Event.objects.count()
    assert alice.put(f"{OPS}/chat", read)[0] == 200
    assert Event.objects.count() == before
    read["spec"]["enabled"] = False
    assert alice.put(f"{OPS}/chat", read)[1]["status"]["state"] == "disabled"
    assert Event.objects.latest("pk").message.startswith("Changed disabled: sends run.*")
    assert alice.post(f"{OPS}/chat/test")[0] == 409
    read["metadata"]["name"] = "other"
    assert alice.put(f"{OPS}/chat", read)[0] == 422


def test_a_test_is_one_delivery_even_to_who_listens_to_everything(people: Any, chat: Webhook) -> None:
    alice = api_of(people.alice)
    alice.put(f"{OPS}/chat", manifest(events=["*"]))
    before = chat.deliveries.count()
    status, row = alice.post(f"{OPS}/chat/test")
    assert (status, row["type"], row["state"], row["body"]["data"]["actor"]) == (
        202,
        "webhook.test",
        "waiting",
        "alice",
    )
    assert chat.deliveries.count() == before + 1
    for _ in range(actions.MAX_TESTS - 1):
        assert alice.post(f"{OPS}/chat/test")[0] == 202
    status, answer = alice.post(f"{OPS}/chat/test")
    assert status == 409
    assert "5 tests are on their way" in answer["detail"]


def test_prometheus_sees_whether_deliveries_keep_up(client: Client, people: Any, chat: Webhook) -> None:
    def numbers() -> dict[str, float]:
        client.force_login(people.root)
        lines = client.get("/metrics").content.decode().splitlines()
        found = [line.split() for line in lines if line.startswith("portal_webhook")]
        return {name: float(value) for name, value in found}

    waiting = Delivery.objects.count()
    assert waiting
    late = timezone.now() - dt.timedelta(minutes=10)
    Delivery.objects.update(next_at=late)
    found = numbers()
    assert found["portal_webhook_deliveries_waiting"] == waiting
    assert 600 <= found["portal_webhook_delay_seconds"] < 700
    assert found["portal_webhooks_given_up"] == 0
    Webhook.objects.update(enabled=False, disabled_reason="Its receiver answered 410 Gone.")
    assert numbers() == {
        "portal_webhook_deliveries_waiting": 0, "portal_webhook_delay_seconds": 0, "portal_webhooks_given_up": 2,
    }  # fmt: skip


def test_deliveries_have_pages_and_filters(people: Any, chat: Webhook) -> None:
    alice = api_of(people.alice)
    for n in range(5):
        events.record("run.running", actor=None, appcode="ops-demo", object=f"cluster ops-demo/s{n}")
    seen, path = [], f"{OPS}/chat/deliveries?limit=2"
    while path:
        _, answer = alice.get(path)
        seen += [item["uid"] for item in answer["items"]]
        path = (answer["next"] or "").partition("/api/v1")[2]
    assert len(seen) == len(set(seen)) == 6
    assert len(alice.get(f"{OPS}/chat/deliveries?type=run.failed&state=waiting")[1]["items"]) == 1
    assert alice.get(f"{OPS}/chat/deliveries?state=sent")[0] == 422


# The list of events


def test_every_kind_of_event_is_in_a_group_that_can_be_chosen() -> None:
    """Collects the first argument of every call of record, entry and the like."""
    found = set()
    for folder in ("portal", "billing", "datastores", "clusters"):
        for path in Path(folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    continue
                if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in RECORDERS:
                    found |= {arg.value for arg in node.args if isinstance(arg, ast.Constant) and _is_kind(arg.value)}
                    found |= {
                        arg.values[0].value + "x"
                        for arg in node.args
                        if isinstance(arg, ast.JoinedStr) and _starts(arg)
                    }
    groups = {verb.partition(".")[0] for verb in found}
    assert {"run", "invoice", "cluster", "price", "webhook", "datastore", "appcode"} <= groups
    assert groups <= set(GROUPS) | set(PLATFORM_GROUPS), groups - set(GROUPS) - set(PLATFORM_GROUPS)


RECORDERS = {"record", "entry", "_record", "_told", "cluster_event", "run_event"}


def _is_kind(value: Any) -> bool:
    import re

    return isinstance(value, str) and re.fullmatch(r"[a-z]+\.[a-z_-]+", value) is not None


def _starts(text: ast.JoinedStr) -> bool:
    first = text.values[0] if text.values else None
    return isinstance(first, ast.Constant) and _is_kind(f"{first.value}x")
