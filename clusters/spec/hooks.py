"""The hooks that a manifest names → with all that they say, and whether their clusters can be called as they would be."""

from __future__ import annotations

from clusters.after import HookSpec, HookWork, part_name
from clusters.after import part_of as hooks_of
from clusters.clouds.placement import Place
from clusters.manifest import ClusterSpec, check_hook_env
from clusters.models import Cluster, Flavor, Hook, Image
from datastores.models import Datastore
from portal.errors import FieldError, Invalid
from portal.models import Appcode


def hooks_named(spec: ClusterSpec, appcode: Appcode, place: Place, errors: list[FieldError]) -> tuple[HookSpec, ...]:
    """The hooks of `spec` with all that they say; adds an error for each name in them that means nothing. Four queries at most,
    none where there are no hooks."""
    if not spec.hooks:
        return ()
    used = {each.use for each in spec.hooks if each.use}
    rows = Hook.objects.filter(appcode=appcode, name__in=used) if used else ()
    saved = {row.name: HookWork.model_validate(row.spec) for row in rows}
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
        except ValueError as error:  # with those of the hook that it uses
            errors.append(FieldError((*where, "env"), str(error)))
    return tuple(found)


def judge_hook_names(spec: ClusterSpec, appcode: Appcode, name: str) -> None:
    """Raises Invalid at each hook of the cluster `name` of which the own cluster would be called as another one is. One query,
    none where there are no hooks."""
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
