"""What a run could ask for instead, to start now or sooner: a definition → ways to change it → `clusters/admission/offers.py` →
what to send. Reads nothing; the preview has read all that it needs.

A way is a whole definition, so an offer is the difference between two of them, as a JSON merge patch (RFC 7396).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from pydantic import ValidationError

from clusters.admission.demand import GPU
from clusters.admission.offers import MOST_TRIED, Change, Kind, Offer, Terms, offers
from clusters.admission.packing import Tasks
from clusters.admission.words import duration
from clusters.catalog.lookup import Resolved
from clusters.catalog.models import Flavor
from clusters.clouds.registry import takes_spare
from clusters.frameworks import FRAMEWORKS
from clusters.frameworks.base import WORKER, Resources
from clusters.manifest.cluster import ClusterSpec, RoleSpec
from clusters.runs.placing.room import Here


@dataclass(frozen=True)
class Offered:
    """`patch`: a JSON merge patch of the manifest. `words`: what changes, as in "2 × 4 GPUs". `at`: when it starts at the latest;
    None if it starts now, or nobody knows. `per_hour`: its price, with the dearest GPU model that it may get."""

    kind: Kind
    patch: Mapping[str, Any]
    words: str
    starts: bool
    at: dt.datetime | None
    per_hour: Decimal


def offered(
    resolved: Resolved,
    here: Here,
    flavors: Iterable[Flavor],
    quota: tuple[int, int],
    placed: Callable[[Sequence[Resolved]], list[list[Tasks]]],
    price: Callable[[Resolved], Decimal],
) -> list[Offered]:
    """At most three. `here`: where the run was judged. `quota`: GPUs for which its limit has room now, and the limit. `placed`:
    the tasks of definitions as they take room."""
    ways = [("fewer", resolved), *_ways(resolved, list(flavors))]
    changes = [
        Change(
            kind,
            tuple(each for each in tasks if each.count),
            way.spec.priority_class,
            way.spec.time_limit,
            number,
        )
        for number, ((kind, way), tasks) in enumerate(zip(ways, placed([way for _, way in ways]), strict=True))
    ]  # fmt: skip
    was, others = changes[0], changes[1:]

    def changed(change: Change) -> Resolved:
        return _changed(ways[change.way][1], was, change)

    terms = Terms(
        lambda change: here.prospect(change.tasks),
        lambda change: here.ask(change.tasks, change.priority_class, change.seconds),
        lambda change: quota,
        lambda change: price(changed(change)),
    )
    ends = resolved.spec.mode == "batch"
    limits = here.limits(was.tasks, was.priority_class) if ends else ()
    may_be_spare = ends and takes_spare(resolved.place.cloud)
    found = offers(terms, was, others, limits, may_be_spare=may_be_spare)
    return [_offered(each, resolved, changed(each.change)) for each in found]


def _offered(offer: Offer, was: Resolved, now: Resolved) -> Offered:
    before, after = (each.spec.model_dump(mode="json", by_alias=True) for each in (was, now))
    patch = {"spec": _difference(before, after)}
    at = dt.datetime.fromtimestamp(offer.latest, dt.UTC) if offer.latest else None
    return Offered(offer.change.kind, patch, _words(offer.change, was, now), offer.starts, at, offer.price)


def _words(change: Change, was: Resolved, now: Resolved) -> str:
    if change.kind == "timeLimit":
        return f"with a time limit of {duration(change.seconds or 0)}"
    if change.kind == "spare":
        return "as spare"
    if change.kind == "model":
        had = {each.gpu_model for each in was.resources.values()}
        models = sorted({each.gpu_model for each in now.resources.values() if each.gpus} - had)
        return f"on {' and '.join(models)}" if models else "on other GPUs"
    held = [now.resources[role].gpus for role in now.spec.active_roles if now.resources[role].gpus]
    if len(set(held)) == 1:
        count = sum(each.together for role, each in now.spec.active_roles.items() if now.resources[role].gpus)
        return f"as {count} × {held[0]} GPU{'' if held[0] == 1 else 's'}"
    driver, more = FRAMEWORKS[now.spec.framework], []
    for role, each in now.spec.active_roles.items():
        if role not in was.spec.active_roles or was.spec.roles[role].together != each.together:
            more.append(driver.role(role).counted(each.together))
    return f"with {' and '.join(more)}"


def _changed(way: Resolved, was: Change, change: Change) -> Resolved:
    """The definition of a way, with the counts, the limit and the class of a change."""
    roles = dict(way.spec.roles)
    if change.kind == "fewer":
        turns = FRAMEWORKS[way.spec.framework].is_independent
        for before, each in zip(was.tasks, change.tasks, strict=True):
            if each.count != before.count:
                fewer = {"at_once": each.count} if turns else {"count": each.count}
                roles[each.role] = roles[each.role].model_copy(update=fewer)
    update = {"roles": roles, "time_limit": change.seconds, "priority_class": change.priority_class}
    return replace(way, spec=way.spec.model_copy(update=update))


def _ways(was: Resolved, flavors: Sequence[Flavor]) -> list[tuple[Kind, Resolved]]:
    """Splits and other models, each kind in the order in which they are tried. Without those that the manifest refuses."""
    usable = [_resources(each) for each in flavors if each.gpus]
    usable = [each for each in usable if was.place.driver.has_pools or not each.demand.labels]
    found: list[tuple[Kind, Resolved]] = []
    kinds: Sequence[tuple[Kind, Iterator[_Roles]]] = (("split", _splits(was, usable)), ("model", _models(was, usable)))
    for kind, several in kinds:
        for number, (roles, resources) in enumerate(several):
            if number == MOST_TRIED:
                break
            spec = was.spec.model_dump(mode="json", by_alias=True)
            spec["roles"] = {role: each.model_dump(mode="json", by_alias=True) for role, each in roles.items()}
            try:
                way = replace(was, spec=ClusterSpec.model_validate(spec), resources=resources)
            except ValidationError:
                continue
            found.append((kind, way))
    return found


_Roles = tuple[dict[str, RoleSpec], dict[str, Resources]]


def _splits(was: Resolved, flavors: Sequence[Resources]) -> Iterator[_Roles]:
    """The same GPUs of the tasks that compute together, in other parts: first those that change the number of tasks least. The
    leading role keeps its one task."""
    driver, roles = FRAMEWORKS[was.spec.framework], was.spec.active_roles
    partners = {role.name for role in driver.roles if role.takes_part and not role.kept_alive}
    able = [role for role in roles if role in partners and was.resources[role].gpus]
    if driver.is_independent or not able or WORKER.name not in partners:
        return
    one = was.resources[max(able, key=lambda role: was.resources[role].gpus * roles[role].count)]
    group = [role for role in able if (was.resources[role].gpus, _kind(was.resources[role])) == (one.gpus, _kind(one))]
    count = sum(roles[role].count for role in group)
    gpus = count * one.gpus

    def order(each: Resources) -> tuple[float, int, str]:
        parts = gpus // each.gpus
        return max(parts / count, count / parts), abs(parts * each.cpu_milli - count * one.cpu_milli), each.flavor

    able_to = [
        each for each in flavors if _kind(each) == _kind(one) and each.gpus != one.gpus and gpus % each.gpus == 0
    ]
    for flavor in sorted(able_to, key=order):
        leader = next((role for role in group if role != WORKER.name), None)
        if WORKER.name not in group and WORKER.name in roles:
            return  # Workers of another kind would have to change, too.
        parts = {WORKER.name: gpus // flavor.gpus - (1 if leader else 0), **({leader: 1} if leader else {})}
        changed, resources = dict(was.spec.roles), dict(was.resources)
        for role, number in parts.items():
            if not number:
                changed.pop(role, None)
                resources.pop(role, None)
                continue
            kept = changed.get(role) or RoleSpec(flavor=flavor.flavor)
            changed[role] = kept.model_copy(update={"flavor": flavor.flavor, "count": number})
            resources[role] = flavor
        yield changed, resources


def _models(was: Resolved, flavors: Sequence[Resources]) -> Iterator[_Roles]:
    """As many GPUs of another kind for every task that has such GPUs."""
    roles = {role: was.resources[role] for role in was.spec.active_roles if was.resources[role].gpus}
    if not roles:
        return
    one = max(roles.values(), key=lambda each: each.gpus)
    if not one.gpu_model and not one.node_labels:
        return  # It takes any.
    mine = [role for role, each in roles.items() if _kind(each) == _kind(one)]
    for kind in sorted({_kind(each) for each in flavors if each.resource == one.resource} - {_kind(one)}):
        chosen: dict[str, Resources] = {}
        for role in mine:
            alike = [each for each in flavors if _kind(each) == kind and each.gpus == roles[role].gpus]
            best = min(alike, key=lambda each: abs(each.cpu_milli - roles[role].cpu_milli), default=None)
            if best:
                chosen[role] = best
        if chosen.keys() == set(mine):
            changed = {
                role: each.model_copy(update={"flavor": chosen[role].flavor}) if role in chosen else each
                for role, each in was.spec.roles.items()
            }
            yield changed, {**was.resources, **chosen}


def _kind(each: Resources) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    """What its GPUs are."""
    return each.resource, each.gpu_model, each.demand.labels if each.resource == GPU else ()


def _resources(flavor: Flavor) -> Resources:
    return Resources(
        flavor.name, flavor.cpu_milli, flavor.memory_mb, flavor.gpus, flavor.gpu_model, resource=flavor.resource,
        node_labels=flavor.node_labels, tolerations=flavor.tolerations, extra=flavor.extra,
    )  # fmt: skip


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch that makes one of the other."""
    patch: dict[str, Any] = dict.fromkeys(before.keys() - after.keys())
    for key, value in after.items():
        if key not in before:
            patch[key] = {name: each for name, each in value.items() if each} if isinstance(value, dict) else value
        elif isinstance(value, dict) and isinstance(before[key], dict):
            if inner := _difference(before[key], value):
                patch[key] = inner
        elif value != before[key]:
            patch[key] = value
    return patch


def merged(document: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """The document with a merge patch (RFC 7396)."""
    found = dict(document)
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, Mapping):
            before = found.get(key)
            found[key] = merged(before if isinstance(before, Mapping) else {}, value)
        else:
            found[key] = value
    return found
