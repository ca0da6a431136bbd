"""Administrators' actions on clouds: registering them, and placing business lines on them.

Every write is one transaction with its Event; connections are tested outside of transactions. Runs stay where they were made, so
a change that would hide living runs (another installation under the same name, another label) is refused. `manifest.py` parses
the description of a cloud of its kind (Kubernetes).
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from billing.efficiency import measured
from clusters.clouds import registry
from clusters.clouds.drivers.base import CloudError, GivesUpNodes, Inspected, Preflight
from clusters.clouds.kinds import DRIVERS
from clusters.clouds.models import Cloud, CloudState, Placement
from clusters.runs.models import Run
from datastores.models import Volume
from portal.access import require_administrator
from portal.errors import Conflict, FieldError, Invalid
from portal.events import record
from portal.models import OrgNode, User

# Marks credentials to be kept; None means no credentials.
KEEP = "\0"
IF_LOST = "If that one is lost for good, give it up first."


@dataclass(frozen=True)
class Wanted:
    """Values to store for a cloud. KEEP preserves `credentials`, and `prometheus_token` unless its address changes."""

    name: str
    kind: str
    title: str
    settings: Mapping[str, Any]
    enabled: bool = True
    default: bool = False
    server: str = ""
    credentials: str | None = field(default=KEEP, repr=False)
    # The manifest field of the credentials, for errors.
    credentials_field: str = "credentials"
    prometheus_token: str | None = field(default=KEEP, repr=False)

    def wanted(self, row: Cloud | None) -> Wanted:
        return self


class CloudManifest(Protocol):
    """An administrator's description of a cloud, specific to its kind."""

    def wanted(self, row: Cloud | None) -> Wanted:
        """Returns the values to store for a new cloud, or for the registered `row`. Raises Invalid."""


@dataclass(frozen=True)
class Report:
    """The result of a connection test: a sentence and the facts behind it."""

    ok: bool
    message: str
    found: Preflight | None = None

    def json_value(self) -> dict[str, Any]:
        return {"ok": self.ok, "message": self.message, **(self.found.facts if self.found else {})}


def register(manifest: CloudManifest, *, acting_user: User | None) -> Cloud:
    """Adds a cloud even if it does not answer. If it answers, it must have the objects that the settings name. `acting_user` is
    None for commands on the portal's machine. Raises Invalid."""
    _require(acting_user)
    wanted = manifest.wanted(None)
    row = Cloud(name=wanted.name, kind=wanted.kind, prometheus_token=_token(wanted, None))
    if wanted.credentials != KEEP:
        row.credentials, row.server = wanted.credentials, wanted.server
    _require_named(row, wanted)
    with transaction.atomic():
        _write(row, wanted)
        CloudState.objects.filter(name=row.name).delete()
        _record("registered", row, acting_user, f"Registered: {_reached(row)}.")
    return row


def change(row: Cloud, manifest: CloudManifest, *, acting_user: User | None) -> Cloud:
    """Applies a manifest; without credentials keeps the stored ones. Idempotent. Raises Invalid and Conflict (row changed)."""
    _require(acting_user)
    wanted = manifest.wanted(row)
    if wanted.credentials not in (KEEP, row.credentials):
        _require_the_same(row, wanted)
    if wanted.credentials not in (KEEP, row.credentials) or dict(wanted.settings) != row.settings:
        _require_named(row, wanted)
    with transaction.atomic():
        now = Cloud.objects.select_for_update().filter(pk=row.pk).first()
        if now is None or now.revision != row.revision:
            raise Conflict(f"Somebody else has changed or removed {row.name} meanwhile; look at it again.")
        for name, old in DRIVERS[row.kind].fixed_settings.items():
            if now.settings.get(name) != wanted.settings.get(name) and (there := _there(now)):
                raise Invalid.at("spec", "settings", name, message=f"{old} {there}, which would be lost.")
        before = _facts(now)
        if wanted.credentials != KEEP:
            now.credentials, now.server = wanted.credentials, wanted.server
        now.prometheus_token = _token(wanted, now)
        _write(now, wanted)
        if changed := [name for name, value in _facts(now).items() if before[name] != value]:
            _record("changed", now, acting_user, f"Changed {', '.join(changed)}: {_reached(now)}.")
    return now


def manifest_of(row: Cloud, **changes: Any) -> Wanted:
    """Returns a row's values with `changes`; keeps its credentials."""
    return replace(Wanted(row.name, row.kind, row.title, row.settings, row.enabled, row.is_default), **changes)


@transaction.atomic
def remove(row: Cloud, *, acting_user: User | None) -> None:
    """Deletes a cloud's row and changes nothing in the cloud. Raises Conflict while something depends on it."""
    _require(acting_user)
    row = Cloud.objects.select_for_update().get(pk=row.pk)
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
    _record("removed", row, acting_user, f"Removed: {_reached(row)}.")
    row.delete()


def give_up_node(row: Cloud, node: str, *, acting_user: User) -> None:
    """Declares a node that does not answer as permanently off. Raises Conflict if it is not off, or with instructions if the
    portal lacks the rights."""
    require_administrator(acting_user)
    try:
        source = registry.connect(row)
        if not isinstance(source, GivesUpNodes):
            raise Conflict(f"Machines of {row.title} cannot be given up.")
        source.give_up_node(node)
    except CloudError as error:
        raise Conflict(f"{str(error).rstrip('.')}.") from error
    message = f"Node {node} was given up: it is off and stays off. Its tasks start elsewhere."
    with transaction.atomic():
        _record("node_given_up", row, acting_user, message)


def place(node: OrgNode, cloud: str | None, *, acting_user: User | None) -> None:
    """Places a business line on a cloud, or the default for None. Existing runs stay where they are. Raises Invalid."""
    _require(acting_user)
    _place(node, cloud, _to_place(node, cloud), acting_user)


def place_all(wanted: Mapping[OrgNode, str | None], *, acting_user: User | None) -> None:
    """Places several business lines, all or none. Raises Invalid with each error at the path of its line."""
    _require(acting_user)
    rows, errors = dict[OrgNode, Cloud | None](), list[FieldError]()
    for node, cloud in wanted.items():
        try:
            rows[node] = _to_place(node, cloud)
        except Invalid as invalid:
            errors += [FieldError((node.path,), item.message) for item in invalid.errors]
    if errors:
        raise Invalid(errors)
    with transaction.atomic():
        for node, row in rows.items():
            _place(node, wanted[node], row, acting_user)


def _to_place(node: OrgNode, cloud: str | None) -> Cloud | None:
    """Returns the cloud of that name, None for the default. Raises Invalid if the business line cannot run there."""
    if cloud is None:
        return None
    row = _to_place_on(cloud)
    if not node.namespace:
        raise Invalid.at("businessLine", message=f"{node} has no namespace of its own, so it is no business line.")
    if DRIVERS[row.kind].is_reserved(node.namespace):
        raise Invalid.at(
            "businessLine", message=f"The namespace “{node.namespace}” belongs to {DRIVERS[row.kind].title} itself."
        )
    if sentence := _why_foreign(row, [node.namespace]):
        raise Invalid.at("cloud", message=sentence)
    return row


def _why_foreign(row: Cloud, namespaces: Collection[str]) -> str:
    """Returns which of these namespaces exist on a cloud and belong to others, in a sentence. A cloud that does not answer is
    checked when something is to run."""
    try:
        source = registry.connect(row)
        return " ".join(source.foreign(namespaces).values()) if isinstance(source, Inspected) else ""
    except CloudError:
        return ""


@transaction.atomic
def _place(node: OrgNode, cloud: str | None, row: Cloud | None, acting_user: User | None) -> None:
    before = Placement.objects.select_for_update(of=("self",)).select_related("cloud").filter(org_node=node).first()
    was = before.cloud.name if before else None
    if was == cloud:
        return
    if row is None:
        Placement.objects.filter(org_node=node).delete()
    else:
        Placement.objects.update_or_create(org_node=node, defaults={"cloud": row})
    title = row.title if row else "the default"
    record(
        "org.placed",
        actor=acting_user,
        object=f"org {node.path}",
        message=f"New runs of {node} are made on {title}; those that there are stay where they are.",
        cloud=cloud,
        was=was,
    )


def _to_place_on(cloud: str) -> Cloud:
    """Returns the cloud of that name. Raises Invalid."""
    row = registry.rows().filter(name=cloud).first()
    if row is None:
        raise Invalid.at("cloud", message=f"There is no cloud “{cloud}”.")
    if not row.enabled:
        raise Invalid.at("cloud", message=f"{row.title} takes no new runs; choose another one or enable it first.")
    return row


def try_connection(row: Cloud) -> Report:
    """Tests the stored connection and saves the result unless the row changed meanwhile. Takes a few seconds at most."""
    report = _tried(row)
    facts: dict[str, Any] = {"tested_at": timezone.now(), "test": report.json_value()}
    if report.found and report.found.identity and not (row.uid and _there(row)):
        facts["uid"] = report.found.identity
    Cloud.objects.filter(pk=row.pk, revision=row.revision).update(**facts)
    for name, value in facts.items():
        setattr(row, name, value)
    return report


def _tried(row: Cloud) -> Report:
    try:
        source = registry.connect(row)
        if not isinstance(source, Inspected):
            return Report(True, f"{row.title} is saved; whether it answers is seen when it is followed.")
        found = source.preflight(_namespaces(row))
    except CloudError as error:
        return Report(False, str(error))
    if row.uid and found.identity and row.uid != found.identity and (there := _there(row)):
        return Report(False, _another(row, there), found)
    return Report(found.ok, found.message, found)


def _another(row: Cloud, there: str) -> str:
    return f"This is another {DRIVERS[row.kind].title} cluster than the one with {there} of ours."


def _namespaces(row: Cloud) -> set[str]:
    """Returns the namespaces of the business lines placed on a cloud."""
    here = Q(placement__cloud=row.pk) if row.pk else Q(pk=None)
    if row.is_default:
        here |= Q(placement=None)
    lines = OrgNode.objects.filter(here, namespace__isnull=False)
    kind = DRIVERS[row.kind]
    return {name for name in lines.values_list("namespace", flat=True) if name and not kind.is_reserved(name)}


def _require_the_same(row: Cloud, wanted: Wanted) -> None:
    """Raises Invalid if new credentials lead to another installation while runs or volumes are on the cloud.

    A cloud with unknown identity was never followed, so nothing was ever seen there.
    """
    if not row.uid or not (there := _there(row)):
        return
    other = copy.copy(row)
    other.credentials = wanted.credentials
    try:
        source = registry.connect(other)
        uid = source.identity() if isinstance(source, Inspected) else row.uid
    except CloudError as error:
        raise Invalid.at(
            "spec",
            wanted.credentials_field,
            message=f"It has {there} of ours, so the portal has to see that this is the same cluster, and cannot: {error} "
            f"{IF_LOST}",
        ) from error
    if uid != row.uid:
        raise Invalid.at("spec", wanted.credentials_field, message=f"{_another(row, there)} {IF_LOST}")


def _require_named(row: Cloud, wanted: Wanted) -> None:
    """Raises Invalid if the cloud lacks objects that the settings name. The connection test reports a silent cloud."""
    probe = copy.copy(row)
    probe.settings, probe.is_default = dict(wanted.settings), wanted.default
    if wanted.credentials != KEEP:
        probe.credentials = wanted.credentials
    try:
        source = registry.connect(probe)
        wrong = source.misnamed(_namespaces(probe)) if isinstance(source, Inspected) else {}
    except CloudError:
        return
    if wrong:
        raise Invalid([FieldError(("spec", "settings", name), sentence) for name, sentence in wrong.items()])


def _write(row: Cloud, wanted: Wanted) -> None:
    """Saves a row, inside a transaction. Raises Invalid for a name that is taken."""
    if wanted.default and not wanted.enabled:
        raise Invalid.at("spec", "default", message="What takes no new runs cannot be the default.")
    # Serializes writers, so that two clouds cannot both become the default.
    others = {each.pk: each for each in Cloud.objects.select_for_update().order_by("pk")}
    old = others.pop(row.pk, None)
    if any(other.name == row.name for other in others.values()):
        raise Invalid.at("metadata", "name", message=f"“{row.name}” is registered already; choose another name.")
    row.title, row.settings = wanted.title or row.name, dict(wanted.settings)
    row.enabled, row.is_default = wanted.enabled, wanted.default
    if row.enabled:
        row.given_up_at = None
    if old and _reached_by(old) != _reached_by(row):
        row.revision = old.revision + 1
        # The result of the last test no longer applies.
        row.tested_at, row.test = None, {}
    if row.is_default:
        Cloud.objects.filter(is_default=True).exclude(pk=row.pk).update(is_default=False)
    try:
        with transaction.atomic():
            row.save()
    except IntegrityError as error:
        raise Conflict("Somebody else has just registered a cloud; look at the list and try again.") from error


def _token(wanted: Wanted, row: Cloud | None) -> str | None:
    """Returns the Prometheus token to store. A token is never sent to another address than it was given for."""
    if wanted.prometheus_token != KEEP:
        return wanted.prometheus_token
    same = row is not None and row.settings.get("prometheus", "") == wanted.settings.get("prometheus", "")
    return row.prometheus_token if row and same else None


def _reached_by(row: Cloud) -> tuple[Any, ...]:
    return row.credentials, row.settings, row.prometheus_token


def _reached(row: Cloud) -> str:
    where = row.server or "the portal's own cluster"
    return f"{row.title} at {where}{', the default' if row.is_default else ''}{'' if row.enabled else ', no new runs'}"


def _facts(row: Cloud) -> dict[str, Any]:
    """Returns the values whose changes an Event names."""
    return {
        "title": row.title,
        "credentials": row.credentials,
        "settings": row.settings,
        "the token of Prometheus": row.prometheus_token,
        "whether it takes new runs": row.enabled,
        "the default": row.is_default,
    }


def _there(row: Cloud) -> str:
    """Returns what the portal would lose with a cloud, such as "2 runs and 1 volume", or ""."""
    counts = {
        "run": Run.objects.filter(cloud=row.name, gone=False).count(),
        "volume": Volume.objects.filter(cloud=row.name).count(),
    }
    return " and ".join(f"{count} {what}{'' if count == 1 else 's'}" for what, count in counts.items() if count)


def _require(user: User | None) -> None:
    if user is not None:
        require_administrator(user)


def _record(verb: str, row: Cloud, actor: User | None, message: str) -> None:
    record(f"{row.kind}.{verb}", actor=actor, object=f"{row.kind} {row.name}", message=message)
