"""Resolves the hooks that a manifest names, and checks that the names of their clusters are free."""

from __future__ import annotations

from clusters.catalog.models import Flavor, Image
from clusters.clouds.placement import Place
from clusters.hooks.models import Hook
from clusters.manifest.cluster import ClusterSpec
from clusters.manifest.env import check_hook_env
from clusters.manifest.hook_spec import HookSpec, HookWork, part_name
from clusters.manifest.hook_spec import part_of as hooks_of
from clusters.runs.models import Cluster
from datastores.models import Datastore
from portal.errors import FieldError, Invalid
from portal.models import Appcode


def hooks_named(spec: ClusterSpec, appcode: Appcode, place: Place, errors: list[FieldError]) -> tuple[HookSpec, ...]:
    """The hooks of `spec`, completed from the saved ones they use. Adds an error for each unknown name. At most four queries."""
    if not spec.hooks:
        return ()
    used = {each.use for each in spec.hooks if each.use}
    rows = Hook.objects.filter(appcode=appcode, name__in=used) if used else ()
    saved = {row.name: HookWork.stored(row.spec) for row in rows}
    found = [each.settled(saved.get(each.use or "")) for each in spec.hooks]
    images = {each.image for each in found} - {None}
    usable = {
        row.name
        for row in Image.objects.filter(name__in=images, enabled=True)
        if row.has(place.driver.software)
    } if images else set()  # fmt: skip
    flavors = {each.flavor for each in found} - {None}
    sizes = set(Flavor.objects.filter(name__in=flavors, enabled=True).values_list("name", flat=True)) if flavors else ()
    outputs = {each.output for each in found} - {None}
    stores = (
        set(Datastore.objects.filter(appcode=appcode, name__in=outputs).values_list("name", flat=True))
        if outputs
        else ()
    )
    for number, each in enumerate(found):
        where = ("spec", "hooks", str(number))
        if each.use and each.use not in saved:
            errors.append(FieldError((*where, "use"), f"{appcode.code} has no hook “{each.use}”."))
        if each.image and each.image not in usable:
            sentence = f"The catalogue has no image “{each.image}” that runs on {place.title}."
            errors.append(FieldError((*where, "image"), sentence))
        if each.flavor and each.flavor not in sizes:
            errors.append(FieldError((*where, "flavor"), f"There is no flavor “{each.flavor}”."))
        if each.output and each.output not in stores:
            errors.append(FieldError((*where, "output"), f"{appcode.code} has no datastore “{each.output}”."))
        try:
            check_hook_env(each.env)
        except ValueError as error:  # includes the variables of the saved hook
            errors.append(FieldError((*where, "env"), str(error)))
    return tuple(found)


def judge_hook_names(spec: ClusterSpec, appcode: Appcode, name: str) -> None:
    """Raises Invalid at each hook of cluster `name` whose own cluster's name is taken. One query, none without hooks."""
    if not spec.hooks:
        return
    names = [part_name(name, hook.name) for hook in spec.hooks]
    others = Cluster.objects.filter(appcode=appcode, name__in=names, deleted_at=None).exclude(part_of=hooks_of(name))
    taken = set(others.values_list("name", flat=True))
    wrong = [(number, each) for number, each in enumerate(names) if each in taken]
    if wrong:
        raise Invalid(
            [
                FieldError(
                    ("spec", "hooks", str(number), "name"),
                    f"Its cluster would be called “{each}”, as another one of {appcode.code} is; name the hook otherwise.",
                )
                for number, each in wrong
            ]
        )
