"""A world with one object of every kind in ops-demo and on the platform, so that every address leads to a real object."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

from django.apps import apps
from django.conf import settings
from django.test import Client
from django.utils import timezone

from billing.budgets import actions as budgets
from billing.invoices import closing
from billing.ledger import posting
from billing.models import Closing, Credit, Discount, Invoice, InvoiceLine, Price, UsageSegment
from clusters.catalog.models import Flavor, Image
from clusters.clouds.models import CloudState
from clusters.cluster_templates.models import Template
from clusters.environments.models import Environment, Plugin
from clusters.gateway.models import Origin
from clusters.git_tokens.models import GitToken
from clusters.hooks.models import Hook
from clusters.manifest.cluster import ClusterSpec
from clusters.model_registry.actions import move_alias, save_retention
from clusters.model_registry.models import ModelVersion, RegisteredModel
from clusters.model_registry.retention import RetentionSpec
from clusters.pull_secrets.models import PullSecret
from clusters.services import revisions
from clusters.services.models import Service
from clusters.sweeps.models import Sweep
from datastores.actions import open_store
from datastores.files import trash
from datastores.models import AllowedFolder, Datastore
from portal import events
from portal.actions import requests
from portal.actions import tokens as tokens_actions
from portal.branding import reading
from portal.branding.actions import set_branding
from portal.branding.manifest import BrandingSpec
from portal.manifests.appcode import Quota, Wanted
from portal.models import Delivery, Webhook
from portal.profile.notifications import Notifications, set_notifications
from tests.access.table import PEOPLE
from tests.api.client import SPEC, appcode, manifest
from tests.billing.dashboards.test_usage import MONTH, use
from tests.conftest import new_appcode, new_people

# Nothing listens on this port, so a connection test fails at once.
KUBECONFIG = """
kind: Config
current-context: main
contexts: [{name: main, context: {cluster: one, user: me}}]
clusters: [{name: one, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: me, user: {token: secret}}]
"""
NODE = {"gpus": 0, "gpus_free": 0, "gpu_model": "", "cpu_milli": 8000, "memory_mb": 1 << 15}
# The spec of a cluster template, in the form in which a cluster's is stored.
SAVED = ClusterSpec.model_validate(SPEC).model_dump(mode="json", by_alias=True)
SLUG = f"{MONTH.since:%Y-%m}"


def template(name: str) -> dict[str, Any]:
    return {"kind": "template", "metadata": {"name": name}, "spec": SPEC}


def pipeline(name: str) -> dict[str, Any]:
    stages = [{"name": "train", "spec": SPEC}]
    return {"kind": "pipeline", "metadata": {"name": name}, "spec": {"stages": stages}}


def sweep(name: str, trials: int = 3) -> dict[str, Any]:
    spec = {
        "template": {**SPEC, "command": "python train.py {lr}"}, "trials": trials,
        "parameters": {"lr": {"type": "float", "low": 0.1, "high": 0.2}},
    }  # fmt: skip
    return {"kind": "sweep", "metadata": {"name": name}, "spec": spec}


def benchmark(name: str) -> dict[str, Any]:
    spec = {"image": "tensorflow", "flavor": "middle", "counts": [1, 2]}
    return {"kind": "benchmark", "metadata": {"name": name}, "spec": spec}


def hook(name: str) -> dict[str, Any]:
    return {"kind": "hook", "metadata": {"name": name}, "spec": {"command": "true"}}


def schedule(name: str) -> dict[str, Any]:
    spec = {"cron": "30 2 * * *", "pipeline": "nightly"}
    return {"kind": "schedule", "metadata": {"name": name}, "spec": spec}


def model(name: str) -> dict[str, Any]:
    return {"kind": "model", "metadata": {"name": name}}


def service(name: str) -> dict[str, Any]:
    spec = {"model": "digits/1", "image": "tensorflow", "flavor": "middle"}
    return {"kind": "service", "metadata": {"name": name}, "spec": spec}


def model_version() -> dict[str, Any]:
    return {"kind": "modelVersion", "spec": {"datastore": "data", "path": "frozen", "format": "other"}}


def webhook(name: str) -> dict[str, Any]:
    spec = {"url": "https://hooks.example.com/in", "events": ["run.*"]}
    return {"kind": "webhook", "metadata": {"name": name}, "spec": spec}


def application(name: str) -> dict[str, Any]:
    spec = {
        "type": "web", "image": "tensorflow", "flavor": "middle", "command": "true",
        "endpoints": [{"name": "web", "port": 8080}],
    }  # fmt: skip
    return {"kind": "application", "metadata": {"name": name, "appcode": "ops-demo"}, "spec": spec}


def kubernetes(name: str) -> dict[str, Any]:
    spec = {"title": "Training", "kubeconfig": KUBECONFIG}
    return {"kind": "kubernetes-cluster", "metadata": {"name": name}, "spec": spec}


def window() -> dict[str, Any]:
    at = timezone.now() + dt.timedelta(days=1)
    return {
        "nodes": ["gpu-1"], "startsAt": at.isoformat(), "endsAt": (at + dt.timedelta(hours=1)).isoformat(), "reason": "Disks",
    }  # fmt: skip


def datastore(name: str, bucket: str) -> dict[str, Any]:
    keys = {"access_key": os.environ["PORTAL_S3_ACCESS_KEY"], "secret_key": os.environ["PORTAL_S3_SECRET_KEY"]}
    spec = {"s3": {"server": os.environ["PORTAL_S3_URL"], "bucket": bucket, **keys}}
    return {"kind": "datastore", "metadata": {"name": name, "appcode": "ops-demo"}, "spec": spec}


def begin_canary(made: Service, version: ModelVersion) -> None:
    """Starts a canary rollout in phase Comparing, as if the first revision had been promoted."""
    first = revisions.living(made)
    assert first
    revisions.end(first, "Promoted", "")
    made.refresh_from_db()
    canary = revisions.begin_rollout(
        made, version, kind="canary", weight=10, minutes=5, by_hand=True, reason="", by=None,
    )  # fmt: skip
    revisions.to_phase(canary, "Comparing", "")


@dataclass(frozen=True)
class World:
    """`values` fill placeholders of addresses with existing objects, `absent` with absent ones; `bodies` are sent as @name."""

    values: Mapping[str, object]
    absent: Mapping[str, object]
    bodies: Mapping[str, str]
    tokens: Mapping[str, str]
    sessions: Mapping[str, str]


def make(bucket: str) -> World:
    people = new_people()
    users = {name: getattr(people, name) for name in PEOPLE if name != "anonymous"}
    tokens = {name: tokens_actions.make_token("test", 10, acting_user=user)[1] for name, user in users.items()}

    def post(name: str, path: str, body: Any) -> Any:
        given = {"Authorization": f"Bearer {tokens[name]}"}
        answer = Client(headers=given).post(f"/api/v1{path}", json.dumps(body), content_type="application/json")
        assert answer.status_code in (200, 201, 202), answer.content
        return answer.json()

    Flavor.objects.create(name="middle", title="Middle", cpu_milli=1000, memory_mb=2048)
    Flavor.objects.create(name="middle-1-gpu", title="Middle + 1 GPU", cpu_milli=1000, memory_mb=2048, gpus=1)
    Image.objects.create(name="tensorflow", title="TensorFlow", environment="/usr", container="example/tensorflow:2")
    new_appcode(
        "ops-more", org="qunarcorp.ops", namespace="ops", owner=people.alice, developer=people.bob, viewer=people.victor
    )
    post("alice", "/appcodes/ops-demo/datastores", datastore("data", bucket))
    data = Datastore.objects.get(name="data")
    open_store(data).upload("old.txt", io.BytesIO(b"old"), 3)
    removed = trash.remove_file(data, "old.txt", acting_user=people.alice)
    assert removed
    rule = post("alice", "/appcodes/ops-demo/datastores/data/rules", {"kind": "checkpoints", "keep": 3})["id"]
    begun = {"path": "large.bin", "size": 9, "fingerprint": "first"}
    post("alice", "/appcodes/ops-demo/datastores/data/versions", {"name": "v1", "path": "frozen"})
    upload = post("alice", "/appcodes/ops-demo/datastores/data/uploads", begun)["id"]
    post("alice", "/appcodes/ops-demo/clusters", manifest())
    Origin.objects.create(label="web-show1", appcode=people.ops, cluster_name="show1", endpoint="web")
    post("alice", "/appcodes/ops-demo/applications", application("panel"))
    saved = {
        "image": "tensorflow",
        "python": "3.11.7",
        "platform": "Linux-x86_64",
        "digest": "0",
        "application": "panel",
    }
    Environment.objects.create(appcode=people.ops, name="torch", version=1, created_by=people.alice, **saved)
    GitToken.objects.create(appcode=people.ops, host="git.example.com", name="git", token="secret")
    PullSecret.objects.create(line=people.ops.org_node, host="git.example.com", username="robot", password="secret")
    Template.objects.create(appcode=people.ops, name="digits", created_by=people.alice, spec=SAVED)
    Template.objects.create(owner=people.alice, name="digits", created_by=people.alice, spec=SAVED)
    post("alice", "/appcodes/ops-demo/sweeps", sweep("lr"))
    Sweep.objects.get().trials.create(number=1, parameters={"lr": 0.15}, phase="Succeeded", value=0.3)
    post("alice", "/appcodes/ops-demo/benchmarks", benchmark("scale"))
    Hook.objects.create(appcode=people.ops, name="publish", created_by=people.alice, spec=hook("publish")["spec"])
    post("alice", "/appcodes/ops-demo/models", model("digits"))
    for _ in range(2):
        post("alice", "/appcodes/ops-demo/models/digits/versions", model_version())
    ModelVersion.objects.update(state="Ready", format="saved-model")
    move_alias(RegisteredModel.objects.get(), "champion", 1, acting_user=people.alice)
    save_retention(RegisteredModel.objects.get(), RetentionSpec(keep=9), acting_user=people.alice)
    post("alice", "/appcodes/ops-demo/services", service("answers"))
    begin_canary(Service.objects.get(), ModelVersion.objects.get(number=1))
    post("alice", "/appcodes/ops-demo/services/answers/tokens", {"name": "checkout"})
    image = Image.objects.get(name="tensorflow")
    Plugin.objects.create(
        image=image, name="tree", version=1, title="Tree", requirements=["labtree"], lock="", digest="0"
    )
    post("alice", "/appcodes/ops-demo/pipelines", pipeline("nightly"))
    post("alice", "/appcodes/ops-demo/pipelines/nightly/run", {})
    post("alice", "/appcodes/ops-demo/schedules", schedule("night"))
    post("root", "/kubernetes", kubernetes("training"))
    CloudState.objects.create(name="training", capacity={"nodes": [{"name": "gpu-1", **NODE}]})
    closed = post("root", "/clouds/training/windows", window())["id"]
    requests.ask(people.ops, Wanted(quota=Quota(gpus=16)), acting_user=people.alice)
    post("alice", "/appcodes/ops-demo/webhooks", webhook("chat"))
    post("root", "/webhooks", webhook("chat"))
    told = {"appcode": "ops-demo", "object": "cluster ops-demo/show1", "message": "No.", "run": 1}
    events.record("run.failed", actor=people.alice, **told)
    told_me = {"webhook": {"url": "https://example.com/hooks/me", "phases": ["failed"]}}
    set_notifications(Notifications.model_validate(told_me), acting_user=people.alice)
    post("alice", "/me/webhook/test", {})
    whose: list[dict[str, Any]] = [{"appcode": people.ops}, {"appcode": None, "person": None}, {"person": people.alice}]
    ours, everybodys, mine = (
        Delivery.objects.filter(webhook__in=Webhook.objects.filter(**of)).latest("pk").uid for of in whose
    )
    year = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    Price.objects.create(sku="gpu", per_hour=Decimal("1.5"), valid_from=year)
    waiting = Price.objects.create(sku="gpu", per_hour=Decimal(2), valid_from=year.replace(year=2099))
    discount = Discount.objects.create(sku="*", percent=5, valid_from=year)
    Credit.objects.create(
        appcode=people.ops,
        amount=Decimal("0.5"),
        reason="A night without power",
        valid_from=MONTH.since,
        created_by="root",
    )
    use(people.ops, MONTH.since, 3600)
    posting.post()
    closing.plan(timezone.now())
    closing.close(Closing.objects.get(month=MONTH.since.date()), timezone.now())
    line = InvoiceLine.objects.filter(invoice=Invoice.objects.get(appcode=people.ops)).earliest("place")
    budget = budgets.add(people.ops, budgets.Asked(Decimal(100), "stop_all", 60), acting_user=people.alice)
    set_branding(
        BrandingSpec(logo=f"data:image/svg+xml;base64,{base64.b64encode(b'<svg/>').decode()}"), acting_user=people.root
    )
    reading.renew()
    values = {
        "{digest}": reading.spec().logo_digest,
        "{code}": "ops-demo", "{appcode}": "ops-demo", "{name}": "show1", "{run}": 1, "{number}": "1", "{role}": "worker",
        "{index}": 0, "{month}": SLUG, "{place}": line.place, "{path}": "qunarcorp.ops", "{username}": "bob",
        "{key}": "x-y", "{label}": "web-show1", "{uidb36}": "x", "{provider_id}": "oidc",
        "{removal}": removed.pk, "{rule}": rule,
        "datastores/{code}/{name}": "data", "datastores/{appcode}/{name}": "data", "datastores/{name}": "data",
        "uploads/{appcode}/{name}": "data", "{upload}": upload, "{version}": "v1", "files/{path}": "file.txt",
        "applications/{code}/{name}": "panel", "applications/{appcode}/{name}": "panel", "applications/{name}": "panel",
        "sweeps/{code}/{name}": "lr", "sweeps/{name}": "lr", "sweeps/{appcode}/{name}": "lr", "{trial}": 1,
        "benchmarks/{code}/{name}": "scale", "benchmarks/{name}": "scale", "benchmarks/{appcode}/{name}": "scale",
        "templates/{name}": "digits", "hooks/{name}": "publish", "{whose}/{name}": "digits", "{whose}": "ops-demo",
        "models/{name}": "digits", "models/{appcode}/{name}": "digits", "{alias}": "champion",
        "models/{name}/versions/{number}": 2, "models/{appcode}/{name}/versions/{number}": 2,
        "services/{name}": "answers", "services/{appcode}/{name}": "answers", "{token}": "checkout",
        "schedules/{name}": "night", "schedules/{appcode}/{name}": "night",
        "pipelines/{name}": "nightly", "pipelines/{appcode}/{name}": "nightly", "{stage}": "train",
        "environments/{name}": "torch", "webhooks/{name}": "chat", "kubernetes/{name}": "training", "clouds/{name}": "training",
        "{host}": "git.example.com", "{node}": "gpu-1", "windows/{pk}": closed,
        "windows/{id}": closed,
        "flavors/{name}": "middle", "images/{name}": "tensorflow", "serving-runtimes/{name}": "triton",
        "{image}": "tensorflow", "plugins/{image}/{name}": "tree", "plugins/{name}": "tree",
        "/appcodes/{code}/webhooks/{name}/deliveries/{uid}": ours, "/webhooks/{name}/deliveries/{uid}": everybodys,
        "/webhook/deliveries/{uid}": mine,
        "budgets/{id}": budget.pk, "budgets/{pk}": budget.pk, "prices/{id}": waiting.pk, "prices/{pk}": waiting.pk,
        "discounts/{id}": discount.pk, "discounts/{pk}": discount.pk, "segments/{id}": UsageSegment.objects.get().pk,
        "{number}/{pk}": UsageSegment.objects.get().pk, "orgs/{pk}": people.ops.org_node_id,
        "folders/{pk}": AllowedFolder.objects.create(path="/srv/data").pk,
        "tokens/{token_key}": tokens_actions.make_token("laptop", 10, acting_user=people.alice)[0].token_key,
    }  # fmt: skip
    absent = {
        "{token}": "nobody", "{alias}": "nobody",
        "{image}": "absent", "{stage}": "absent", "{whose}": "ops-demx", "{host}": "git.example.org",
        "{removal}": 999999, "{rule}": 999999, "{trial}": 99,
        "{code}": "ops-demx", "{appcode}": "ops-demx", "{name}": "absent", "{run}": 99, "{number}": "99", "{role}": "ghost",
        "{index}": 99, "{month}": "2001-02", "{place}": 99, "{path}": "qunarcorp.absent", "{username}": "absent",
        "{uid}": uuid.UUID(int=0), "{key}": "y-x", "{label}": "nowhere", "{uidb36}": "y", "{version}": "absent",
        "{provider_id}": "absent", "{id}": 999999, "{upload}": 999999, "{pk}": 999999, "{token_key}": "absent",
        "{node}": "gpu-9", "{digest}": "absent",
    }  # fmt: skip
    _written_by_the_next_release()
    return World(values, absent, _bodies(bucket), tokens, {name: _session(user) for name, user in users.items()})


# Written by the next release.
UNKNOWN = "ofTheNextRelease"


def _written_by_the_next_release() -> None:
    """Adds an unknown key to every stored specification: during a rolling upgrade this release reads such rows."""
    for model in apps.get_app_config("clusters").get_models():
        if any(field.name == "spec" for field in model._meta.fields):
            for row in model._default_manager.all():
                model._default_manager.filter(pk=row.pk).update(spec={**row.spec, UNKNOWN: {"key": 1}})


def _bodies(bucket: str) -> dict[str, str]:
    bodies = {
        "cluster": manifest(command="true"),
        "new-cluster": manifest("show2"),
        "application": application("panel"),
        "new-application": application("show2"),
        "appcode": appcode("ops-demo", orgNode="qunarcorp.ops"),
        "new-appcode": appcode("ops-new"),
        "datastore": datastore("data", bucket),
        "new-datastore": datastore("more", bucket),
        "template": template("digits"),
        "new-template": template("mine"),
        "hook": hook("publish"),
        "new-hook": hook("mine"),
        "model": model("digits"),
        "new-model": model("words"),
        "model-version": model_version(),
        "service": service("answers"),
        "new-service": service("more"),
        "pipeline": pipeline("nightly"),
        "new-pipeline": pipeline("weekly"),
        "schedule": schedule("night"),
        "new-schedule": schedule("week"),
        "sweep": sweep("lr", trials=4),
        "new-sweep": sweep("second"),
        "new-benchmark": benchmark("second"),
        "webhook": webhook("chat"),
        "new-webhook": webhook("second"),
        "window": window(),
        "kubernetes": kubernetes("training"),
        "new-kubernetes": kubernetes("second"),
    }
    typed = {
        "appcode": "ops-demo", "name": "show2", "framework": "tensorflow", "image": "tensorflow", "command": "true",
        "mode": "batch", "completion": "master", "retries": "0",
        **{f"{role}_flavor": of["flavor"] for role, of in SPEC["roles"].items()},
        **{f"{role}_count": str(of.get("count", 1)) for role, of in SPEC["roles"].items()},
    }  # fmt: skip
    web = {
        "appcode": "ops-demo", "type": "web", "name": "show2", "image": "tensorflow", "command": "true", "endpoints": "web=8080",
        "flavor": "middle", "output_path": "{name}/{run}", "access": "members", "step": "4", "go": "deploy",
    }  # fmt: skip
    store = datastore("more", bucket)["spec"]["s3"] | {"name": "more", "appcode": "ops-demo"}
    cloud = {"name": "second", "title": "Second", "how": "kubeconfig", "kubeconfig": KUBECONFIG}
    prices = "sku,appcode,business_line,per_hour,valid_from\ncpu,,,1,2099-01-01\n"
    texts = {
        "prices": prices, "prices-form": urlencode({"text": prices}), "cluster-form": urlencode(typed),
        "application-form": urlencode(web), "card": urlencode({"start": "hello-gpu", "appcode": "ops-demo"}),
        "store-form": urlencode(store), "cloud-form": urlencode(cloud),
        "window-form": urlencode({"nodes": "gpu-1", "ends_at": window()["endsAt"], "reason": "Disks", "save": "1"}),
        "template-form": urlencode({"name": "mine", "whose": "ops-demo", "spec": json.dumps(SAVED)}),
        "schedule-form": urlencode(
            {"name": "week", "starts": "ops-demo/pipeline/nightly", "cron": "0 4 * * 1", "time_zone": "UTC",
             "missed": "skip", "overlapping": "skip"}
        ),
        "pipeline-form": urlencode({"name": "weekly", "appcode": "ops-demo", "stages": json.dumps(pipeline("x")["spec"])}),
        "register-form": urlencode({"appcode": "ops-demo", "model": "digits", **model_version()["spec"]}),
        "import-form": urlencode({"manifest": json.dumps(manifest("show2"))}),
    }  # fmt: skip
    return texts | {name: json.dumps(body) for name, body in bodies.items()}


def _session(user: Any) -> str:
    client = Client()
    client.force_login(user)
    return client.cookies[settings.SESSION_COOKIE_NAME].value
