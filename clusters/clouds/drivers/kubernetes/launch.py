"""Applies a run: its owner first, then everything else in parallel.

A run is rendered once, when its owner is created. Every later apply takes the objects from the owner (render/kept.py), so it
repairs a living run without changing it.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from clusters.clouds.drivers.base import CloudError, CloudRefused, Plan, RunRef, VolumeSource
from clusters.clouds.drivers.kubernetes.api import kueue
from clusters.clouds.drivers.kubernetes.api.client import MERGE, METADATA, Client, path_of
from clusters.clouds.drivers.kubernetes.api.errors import Missing, Refused, Taken, Unavailable
from clusters.clouds.drivers.kubernetes.namespaces import Namespaces
from clusters.clouds.drivers.kubernetes.render import (
    cache,
    environments,
    gangs,
    kept,
    manifests,
    names,
    pods,
    queueing,
    storage,
)
from clusters.clouds.drivers.kubernetes.repair import drift
from clusters.clouds.drivers.kubernetes.repair.upkeep import remove_claims
from clusters.clouds.drivers.kubernetes.settings import Settings, quantity
from clusters.clouds.drivers.kubernetes.watch import admission

log = logging.getLogger(__name__)

Manifest = dict[str, Any]


def apply(client: Client, settings: Settings, namespaces: Namespaces, plan: Plan) -> None:
    """Starts a run or repairs a living one. Raises Missing if the namespace is deleted meanwhile."""
    before = owner_of(client, plan.run)
    owner = before or _start(client, settings, namespaces, plan)
    if _is_ending(owner["metadata"]):
        if plan.run.life:
            raise CloudError("What was left of it is still being removed.")
        return
    if before:
        namespaces.prepare(plan.run.namespace)
    uid = owner["metadata"]["uid"]
    volumes = {mount.source.volume.id: mount.source for mount in plan.mounts if isinstance(mount.source, VolumeSource)}
    current = [storage.volume_manifest(source, settings) for source in volumes.values()]
    current += manifests.secret_manifests(plan, uid, settings)
    try:
        objects = kept.objects(owner, plan.proof)
    except CloudRefused:
        client.apply_all(current)
        raise
    shared = [each for each in objects if _is_shared(each)]
    _apply_shared(client, settings, shared, check_room=before is not None)
    for group in objects:
        if group["kind"] == gangs.KIND:
            _make_gang(client, group, is_open=names.GANG not in owner["metadata"]["annotations"])
    made = current + [each for each in objects if not (_is_shared(each) or each["kind"] == gangs.KIND)]
    # If the run is deleted meanwhile, the garbage collector finds these objects without an owner and deletes them.
    drafts = [each for each in made if queueing.is_draft(each)]
    ordered = [each for each in made if queueing.is_ordered(each)]
    apart = [*drafts, *ordered]
    client.apply_all([each for each in made if each not in apart and not manifests.is_queued(each)])
    for queued in filter(manifests.is_queued, made):
        _hand_to_kueue(client, queued)
    for draft in drafts:
        _queue(client, draft, ordered)


def owner_of(client: Client, run: RunRef) -> Mapping[str, Any] | None:
    """Returns the owner of a run, None before its launch and after its end."""
    by_name = {"fieldSelector": f"metadata.name={names.owner_name(run)}"}
    found: Mapping[str, Any] | None = next(
        iter(client.get(path_of("ConfigMap", run.namespace), **by_name)["items"]), None
    )
    return found


def _start(client: Client, settings: Settings, namespaces: Namespaces, plan: Plan) -> Mapping[str, Any]:
    """Renders a run and creates its owner, which keeps the result. Returns the owner, which another worker may have created
    first."""
    plan = cache.settled(plan, settings)
    manifests.check(plan, settings)
    if gangs.size(plan) and not _takes_gang(client, settings, namespaces, plan):
        plan = replace(plan, gang="")
    claim = cache.claim_manifest(plan, settings, _now())
    if claim and (why := _why_no_room(client, settings, claim)):
        if not cache.may_be_copied(plan):
            raise CloudError(why)
        settings = cache.without(settings)
        plan = cache.settled(plan, settings)
    shared = (each.claim_manifest(plan, settings, _now()) for each in (environments, cache))
    made = [each for each in manifests.run_manifests(plan, "", settings) if each["kind"] != "Secret"]
    owner = manifests.owner_manifest(plan.run, settings, plan)
    for draft in filter(queueing.is_draft, made):
        draft["spec"] |= _priority(
            client, queueing.priority_class([each for each in made if queueing.is_ordered(each)])
        )
    watched = [(each["kind"], each["metadata"]["name"]) for each in made if each["kind"] in drift.KINDS]
    noted = {names.WORKLOADS: manifests.workloads(plan), names.OBJECTS: watched}
    told = {key: " ".join("/".join(each) for each in found) for key, found in noted.items()}
    if gangs.size(plan):
        told[names.GANG] = plan.gang
    owner["metadata"].setdefault("annotations", {}).update(told)
    owner = kept.with_objects(owner, [*filter(None, shared), *made], plan.proof)
    try:
        return namespaces.put_inside(owner, client.create)
    except Taken as error:
        if found := owner_of(client, plan.run):
            return found
        raise CloudError("It was ended when it was to start.") from error


def _takes_gang(client: Client, settings: Settings, namespaces: Namespaces, plan: Plan) -> bool:
    """Returns whether the cluster would take the PodGroup of a run. Pods without theirs wait for ever, so what keeps it out (a
    quota, a missing right, an upgrade) is found before there are any."""
    namespaces.prepare(plan.run.namespace)
    group = gangs.manifest(plan.run, plan.gang, gangs.size(plan), pods.priority_class(plan, settings))
    try:
        client.request("POST", gangs.path(plan.gang, plan.run.namespace), body=group, query={"dryRun": "All"})
    except Unavailable:
        raise
    except CloudError as error:
        log.warning("run %s gets no group by which all of its pods are bound together: %s", plan.run.id, error)
        return False
    return True


def _make_gang(client: Client, group: Manifest, *, is_open: bool) -> None:
    """Creates the PodGroup of a run if it is not there. `is_open`: its pods have had nodes."""
    if is_open:
        group = {**group, "spec": {**group["spec"], **gangs.policy(gangs.OPEN)}}
    try:
        client.request("POST", gangs.path(group["apiVersion"], group["metadata"]["namespace"]), body=group)
    except Taken:
        return
    except Missing:
        # Without the API there is no such field of pods either.
        log.warning("this cluster serves no %s of %s any more", gangs.PLURAL, group["apiVersion"])


def _apply_shared(client: Client, settings: Settings, claims: Sequence[Manifest], *, check_room: bool) -> None:
    """Applies the claims of what the run shares with others."""
    for claim in claims:
        if check_room and names.CACHE in claim["metadata"]["labels"] and (why := _why_no_room(client, settings, claim)):
            raise CloudError(why)
        # A fresh timestamp on a reused claim makes a concurrent cleanup notice that it changed.
        claim["metadata"]["annotations"][names.USED] = _now()
    for applied in client.apply_all(claims):
        # A pod that mounts it would wait for ever.
        if "deletionTimestamp" in applied["metadata"]:
            raise CloudError("What its tasks share with other runs is being removed, and then made again.")


def _why_no_room(client: Client, settings: Settings, claim: Mapping[str, Any]) -> str:
    """Makes room for a new cached input, whose volume nobody pays for. Returns why there is none while runs use all others.
    Two concurrent calls may both find the last room."""
    metadata = claim["metadata"]
    by_name = {"fieldSelector": f"metadata.name={metadata['name']}"}
    if client.get(path_of("PersistentVolumeClaim", metadata["namespace"]), **by_name)["items"]:
        return ""
    left = quantity(settings.cache_space) - float(metadata["annotations"][names.BYTES])
    if remove_claims(client, settings.portal, names.CACHE, left) <= left:
        return ""
    return (
        f"Cached inputs have {settings.cache_space} together, and those that other runs read leave no room for "
        "this one. It starts when one of them is over; copied or streamed it starts at once."
    )


def _hand_to_kueue(client: Client, job: Mapping[str, Any]) -> None:
    """Applies a Job without force, so that a Job Kueue already manages is not suspended again."""
    try:
        client.apply(job, force="false")
    except Taken:
        log.info("job %s is Kueue's by now", job["metadata"]["name"])


def _queue(client: Client, draft: Mapping[str, Any], roles: Sequence[Manifest]) -> None:
    """Applies a run's Workload, and what makes its pods as Kueue decides: all of it resumed, or all of it stopped."""
    version = kueue.version_of(client)
    if not version:
        raise CloudError(kueue.GONE)
    asked = queueing.workload(draft, roles, version)
    found = kueue.apply(client, asked)
    if admission.is_over(found):
        # The run goes on, so somebody else said so. It never counts again.
        kueue.delete(client, found)
        found = kueue.apply(client, asked)
    if not admission.is_let_go(found):
        for role in roles:
            _stop(client, role)
        return
    flavors = kueue.flavors(client, version, queueing.names_of(found["status"]))
    for role in roles:
        _resume(client, queueing.let_go(role, found["status"], flavors))


def _stop(client: Client, role: Manifest) -> None:
    """Ends the pods of what exists, else makes it without pods. By a patch: the template that Kueue's decision led to stays."""
    path = path_of(role["kind"], role["metadata"]["namespace"], role["metadata"]["name"])
    try:
        client.request(
            "PATCH",
            path,
            body={"spec": queueing.stop(role)},
            content_type=MERGE,
            accept=METADATA,
            query={"fieldManager": names.QUEUE_MANAGER},
        )
    except Missing:
        client.apply(queueing.stopped(role))


def _resume(client: Client, role: Manifest) -> None:
    try:
        client.apply(role)
    except Refused as error:
        if role["kind"] != "Job" or "immutable" not in str(error):
            raise
        # Kueue now lets it go onto other nodes than before, and a Job takes others only as if it had never started.
        path = path_of("Job", role["metadata"]["namespace"], role["metadata"]["name"])
        client.patch(f"{path}/status", {"status": {"startTime": None}})
        client.apply(role)


def _priority(client: Client, name: str) -> Manifest:
    """Returns the priority of a Workload with this class, for which Kueue wants the class and its value."""
    if not name:
        return {}
    value = client.get(path_of("PriorityClass", name=name))["value"]
    return {"priorityClass": name, "priority": value}


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def _is_shared(manifest: Mapping[str, Any]) -> bool:
    """Returns whether an object of a run is a claim that other runs use, too."""
    return not manifest["metadata"].get("ownerReferences") and manifest["kind"] == "PersistentVolumeClaim"


def _is_ending(owner: Mapping[str, Any]) -> bool:
    """Returns whether the end of the run was requested, by its owner's metadata."""
    return "deletionTimestamp" in owner or names.ENDING in (owner.get("annotations") or {})
