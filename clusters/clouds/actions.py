"""What administrators do about clouds: Kubernetes clusters are registered, and business lines placed on them.

Every write is one transaction with its Event; connections are tried outside of any. Runs stay where they were made, so what
would take a living run out of sight (another cluster behind the same name, another label) is refused while there are any.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import orjson
import yaml
from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.crypto import salted_hmac
from pydantic import ValidationError

from billing.efficiency import measured
from clusters.clouds import registry
from clusters.clouds.drivers.base import CloudError
from clusters.clouds.drivers.kubernetes.api import kubeconfig
from clusters.clouds.drivers.kubernetes.api.preflight import Found, Right, inspect, rights_of
from clusters.clouds.drivers.kubernetes.settings import Settings
from clusters.clouds.drivers.kubernetes.watch.capacity import DISK, DISK_ADVICE, gib
from clusters.clouds.manifest import KubernetesManifest, KubernetesSpec, read_manifest
from clusters.clouds.placement import THIS_MACHINE, is_kubernetes_own
from clusters.models import LOCAL, CloudState, KubernetesCluster, Placement, Run
from datastores.models import Volume
from portal.access import require_administrator
from portal.errors import Conflict, Invalid
from portal.events import record
from portal.models import OrgNode, User

# What the portal has to be allowed to do, as administrators are asked to apply it.
ROLE = settings.BASE_DIR / "docker" / "kubernetes" / "clusterrole.yaml"
ADVICE = "Apply docker/kubernetes/clusterrole.yaml and bind it to the portal's user."
IF_LOST = "If that one is lost for good, give it up first."


@dataclass(frozen=True)
class Report:
    """What came of a test: a sentence, and what stands behind it."""

    ok: bool
    message: str
    found: Found | None = None

    def json_value(self) -> dict[str, Any]:
        value: dict[str, Any] = {"ok": self.ok, "message": self.message}
        if self.found:
            value |= {name: getattr(self.found, name) for name in ("version", "nodes", "ready", "gpus")}
            value["missing"] = [str(right) for right in self.found.missing]
        return value


def register(manifest: KubernetesManifest, *, acting_user: User | None) -> KubernetesCluster:
    """Adds a cluster, whether it answers or not. `acting_user` None is a command of the machine's owner. Raises Invalid."""
    _require(acting_user)
    spec = manifest.spec
    if spec.kubeconfig is None and not spec.in_cluster:
        raise Invalid.at("spec", "kubeconfig", message="Give a kubeconfig, or choose the portal's own service account.")
    spec = _labelled(spec, own_label())
    config = _config(spec)
    row = KubernetesCluster(
        name=manifest.metadata.name, kubeconfig=config, server=_server(config), prometheus_token=_token(spec, None)
    )
    with transaction.atomic():
        _write(row, spec)
        CloudState.objects.filter(name=row.name).delete()
        _record("kubernetes.registered", row, acting_user, f"Registered: {_reached(row)}.")
    return row


def change(row: KubernetesCluster, manifest: KubernetesManifest, *, acting_user: User | None) -> KubernetesCluster:
    """Makes the cluster as the manifest says; without credentials in it those that are stored are kept. Saying what is there
    already changes nothing. Raises Invalid, and Conflict when somebody else changed it meanwhile."""
    _require(acting_user)
    spec = _labelled(manifest.spec, str(row.settings.get("portal", "")))
    keeps = spec.kubeconfig is None and not spec.in_cluster
    config = row.kubeconfig if keeps else _config(spec)
    if config != row.kubeconfig:
        _require_the_same(row, config)
    with transaction.atomic():
        now = KubernetesCluster.objects.select_for_update().filter(pk=row.pk).first()
        if now is None or now.revision != row.revision:
            raise Conflict(f"Somebody else has changed or removed {row.name} meanwhile; look at it again.")
        if now.settings.get("portal") != spec.settings.json_value().get("portal") and (there := _there(now)):
            sentence = f"The old label is on {there}, which would be lost."
            raise Invalid.at("spec", "settings", "portal", message=sentence)
        before = _facts(now)
        now.kubeconfig, now.server = config, _server(config)
        now.prometheus_token = _token(spec, now)
        _write(now, spec)
        if changed := [name for name, value in _facts(now).items() if before[name] != value]:
            _record("kubernetes.changed", now, acting_user, f"Changed {', '.join(changed)}: {_reached(now)}.")
    return now


@transaction.atomic
def remove(row: KubernetesCluster, *, acting_user: User | None) -> None:
    """Forgets a cluster; nothing is changed there. Raises Conflict while something depends on it."""
    _require(acting_user)
    row = KubernetesCluster.objects.select_for_update().get(pk=row.pk)
    if there := _there(row):
        raise Conflict(
            f"{row.title} has {there} of ours. Disable it, and remove it when runs are over and datastores of volumes "
            f"are deleted. {IF_LOST}"
        )
    if lines := list(row.placements.values_list("org_node__path", flat=True)[:5]):
        raise Conflict(f"{', '.join(lines)} would have no place any more; place them elsewhere first.")
    if row.is_default:
        raise Conflict(f"{row.title} is the default; make another one the default first.")
    CloudState.objects.filter(name=row.name).delete()
    measured.forget(row.name)
    _record("kubernetes.removed", row, acting_user, f"Removed: {_reached(row)}.")
    row.delete()


def own_label() -> str:
    """The portal label that a cluster is registered with when nobody chose one: two portals that were both set up without a
    thought for each other must not take each other's objects for theirs."""
    return f"{Settings().portal}-{salted_hmac('gpu-cloud/portal', '').hexdigest()[:8]}"


def _labelled(spec: KubernetesSpec, label: str) -> KubernetesSpec:
    """With `label`, or none for that of before there were others, where none was chosen."""
    if spec.settings.portal != Settings().portal or not label:
        return spec
    return spec.model_copy(update={"settings": replace(spec.settings, portal=label)})


def place(node: OrgNode, cloud: str | None, *, acting_user: User | None) -> None:
    """Places a business line on a cloud by name, None for the default. What runs there goes on where it is. Raises Invalid."""
    _require(acting_user)
    row = _to_place_on(cloud)
    if row and node.namespace and (sentence := _why_foreign(row, [node.namespace])):
        raise Invalid.at("cloud", message=sentence)
    _place(node, cloud, row, acting_user)


def _why_foreign(row: KubernetesCluster, namespaces: Collection[str]) -> str:
    """Which of these namespaces exist on a cluster and are not this portal's. One that does not answer is asked again when
    something is to run."""
    try:
        return " ".join(registry.connect(row.name, row.kubeconfig, row.settings).foreign(namespaces).values())
    except CloudError:
        return ""


@transaction.atomic
def _place(node: OrgNode, cloud: str | None, row: KubernetesCluster | None, acting_user: User | None) -> None:
    if cloud is not None and not node.namespace:
        raise Invalid.at("businessLine", message=f"{node} has no namespace of its own, so it is no business line.")
    if row and node.namespace and is_kubernetes_own(node.namespace):
        raise Invalid.at("businessLine", message=f"The namespace “{node.namespace}” belongs to Kubernetes itself.")
    before = Placement.objects.select_for_update().filter(org_node=node).first()
    was = (before.cluster.name if before.cluster else LOCAL) if before else None
    if was == cloud:
        return
    if cloud is None:
        Placement.objects.filter(org_node=node).delete()
    else:
        Placement.objects.update_or_create(org_node=node, defaults={"cluster": row})
    title = "the default" if cloud is None else row.title if row else THIS_MACHINE
    record(
        "org.placed",
        actor=acting_user,
        object=f"org {node.path}",
        message=f"New runs of {node} are made on {title}; those that there are stay where they are.",
        cloud=cloud,
        was=was,
    )


def _to_place_on(cloud: str | None) -> KubernetesCluster | None:
    """The cluster of that name, None for this machine and for the default. Raises Invalid."""
    if cloud is None or (cloud == LOCAL and settings.LOCAL_CLOUD_SOCKET):
        return None
    row = KubernetesCluster.objects.filter(name=cloud).first()
    if row is None:
        raise Invalid.at("cloud", message=f"There is no cloud “{cloud}”.")
    if not row.enabled:
        raise Invalid.at("cloud", message=f"{row.title} takes no new runs; choose another one or enable it first.")
    return row


def manifest_of(row: KubernetesCluster, **spec: Any) -> KubernetesManifest:
    """What a row says, with what is to be changed of it; without credentials, so that those are kept. Raises Invalid."""
    stored = settings_of(row).json_value()
    said = {"title": row.title, "enabled": row.enabled, "default": row.is_default, "settings": stored}
    return read_manifest({"spec": said | spec}, name=row.name)


def settings_of(row: KubernetesCluster) -> Settings:
    """What is stored, without what this version of the portal does not understand any more: to be shown and saved again."""
    try:
        return Settings.read(row.settings)
    except ValidationError as error:
        wrong = {str(each["loc"][0]) for each in error.errors()}
        return Settings.read({name: value for name, value in row.settings.items() if name not in wrong})


def try_connection(row: KubernetesCluster) -> Report:
    """Tries what is stored, and remembers how it went unless that was changed meanwhile. Takes some seconds at most."""
    try:
        found = inspect(registry.client(row.name, row.kubeconfig), _wanted(), settings_of(row).reserved_disk)
    except CloudError as error:
        report = Report(False, str(error))
    else:
        report = _judged(row, found)
    facts: dict[str, Any] = {"tested_at": timezone.now(), "test": report.json_value()}
    if report.found and report.found.uid and not (row.uid and _there(row)):
        facts["uid"] = report.found.uid
    KubernetesCluster.objects.filter(pk=row.pk, revision=row.revision).update(**facts)
    for name, value in facts.items():
        setattr(row, name, value)
    return report


def _judged(row: KubernetesCluster, found: Found) -> Report:
    if row.uid and found.uid and row.uid != found.uid and (there := _there(row)):
        return Report(False, f"This is another Kubernetes cluster than the one with {there} of ours.", found)
    if found.nodes is None:
        has = f"Kubernetes {found.version}"
    else:
        ready = "all of them ready" if found.ready == found.nodes else f"{found.ready} of them ready"
        has = f"Kubernetes {found.version} with {found.nodes} nodes, {ready}, and {found.gpus} GPUs"
    if found.missing:
        return Report(False, f"{has}. The portal may not {', '.join(map(str, found.missing))}. {ADVICE}", found)
    if sentence := _why_foreign(row, _namespaces(row)):
        return Report(False, f"{has}. {sentence}", found)
    if not found.diskless:
        return Report(True, f"{has}. The portal may do all that it needs.", found)
    which = "No node takes a task: all offer" if found.diskless == found.nodes else f"{found.diskless} nodes offer"
    reserved = gib(settings_of(row).reserved_disk)
    sentence = f"{which} less {DISK} than the {reserved} that a task reserves. {DISK_ADVICE}"
    return Report(found.diskless != found.nodes, f"{has}. The portal may do all that it needs. {sentence}", found)


def _namespaces(row: KubernetesCluster) -> set[str]:
    """Those of the business lines whose runs are made on a cluster."""
    here = Q(placement__cluster=row) | Q(placement=None) if row.is_default else Q(placement__cluster=row)
    lines = OrgNode.objects.filter(here, namespace__isnull=False)
    return {name for name in lines.values_list("namespace", flat=True) if name and not is_kubernetes_own(name)}


def _require_the_same(row: KubernetesCluster, config: str | None) -> None:
    """While runs or volumes are on a cluster, new credentials must be for the very same one. Raises Invalid.

    One that is not known has never been followed: nothing was ever seen there.
    """
    if not row.uid or not (there := _there(row)):
        return
    try:
        uid = inspect(registry.client(row.name, config), ()).uid
    except CloudError as error:
        raise Invalid.at(
            "spec",
            "kubeconfig",
            message=f"It has {there} of ours, so the portal has to see that this is the same cluster, and cannot: {error} "
            f"{IF_LOST}",
        ) from error
    if uid != row.uid:
        sentence = f"This is another Kubernetes cluster than the one with {there} of ours. {IF_LOST}"
        raise Invalid.at("spec", "kubeconfig", message=sentence)


def _write(row: KubernetesCluster, spec: KubernetesSpec) -> None:
    """Inside a transaction. Raises Invalid for a name that is taken."""
    # One at a time, so that two cannot both become the default.
    others = {each.pk: each for each in KubernetesCluster.objects.select_for_update().order_by("pk")}
    old = others.pop(row.pk, None)
    if any(other.name == row.name for other in others.values()):
        raise Invalid.at("metadata", "name", message=f"“{row.name}” is registered already; choose another name.")
    row.title = spec.title or row.name
    row.settings = spec.settings.json_value()
    row.enabled, row.is_default = spec.enabled, spec.default
    if row.enabled:
        row.given_up_at = None
    if old and _reached_by(old) != _reached_by(row):
        row.revision = old.revision + 1
    if row.is_default:
        KubernetesCluster.objects.filter(is_default=True).exclude(pk=row.pk).update(is_default=False)
    try:
        with transaction.atomic():
            row.save()
    except IntegrityError as error:
        raise Conflict("Somebody else has just registered a cluster; look at the list and try again.") from error


def _config(spec: KubernetesSpec) -> str | None:
    """The kubeconfig to store, None for the portal's own service account. Raises Invalid."""
    if spec.kubeconfig is None:
        return None
    try:
        found = kubeconfig.read(spec.kubeconfig.get_secret_value(), spec.context, insecure=spec.insecure)
    except kubeconfig.Unusable as error:
        raise Invalid.at("spec", "kubeconfig", message=str(error)) from None
    return orjson.dumps(found).decode()


def _token(spec: KubernetesSpec, row: KubernetesCluster | None) -> str | None:
    """The token of Prometheus to store: one that was given for an address is told to no other."""
    if spec.prometheus_token is not None:
        return spec.prometheus_token.get_secret_value() or None
    same = row is not None and row.settings.get("prometheus", "") == spec.settings.prometheus
    return row.prometheus_token if row and same else None


def _reached_by(row: KubernetesCluster) -> tuple[Any, ...]:
    return row.kubeconfig, row.settings, row.prometheus_token


def _server(config: str | None) -> str:
    return kubeconfig.address(orjson.loads(config)) if config else ""


def _reached(row: KubernetesCluster) -> str:
    where = row.server or "the portal's own cluster"
    return f"{row.title} at {where}{', the default' if row.is_default else ''}{'' if row.enabled else ', no new runs'}"


def _facts(row: KubernetesCluster) -> dict[str, Any]:
    """What an Event tells that it was changed."""
    return {
        "title": row.title,
        "credentials": row.kubeconfig,
        "settings": row.settings,
        "the token of Prometheus": row.prometheus_token,
        "whether it takes new runs": row.enabled,
        "the default": row.is_default,
    }


def _there(row: KubernetesCluster) -> str:
    """What of ours is on a cluster and would be lost with it: "2 runs and 1 volume", or ""."""
    counts = {
        "run": Run.objects.filter(cloud=row.name, gone=False).count(),
        "volume": Volume.objects.filter(cloud=row.name).count(),
    }
    return " and ".join(f"{count} {what}{'' if count == 1 else 's'}" for what, count in counts.items() if count)


@functools.cache
def _wanted() -> tuple[Right, ...]:
    try:
        return rights_of(yaml.safe_load(ROLE.read_text()))
    except OSError as error:
        raise CloudError(f"The list of rights that the portal needs is not there: {error}") from error


def _require(user: User | None) -> None:
    if user is not None:
        require_administrator(user)


def _record(verb: str, row: KubernetesCluster, actor: User | None, message: str) -> None:
    record(verb, actor=actor, object=f"kubernetes {row.name}", message=message)
