"""Templates: cluster definitions saved for reuse, by a user or by an appcode.

One idea: a template is a cluster definition without a name, validated as a manifest and no further. Whether the images
and datastores that it names still exist is reported on use, beside the field, and nothing is lost. The files of its
code travel with it; no definition holds Git or personal tokens.
"""

from __future__ import annotations

from typing import Annotated, Literal

from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.http import Http404
from pydantic import Field, StringConstraints, field_validator

from clusters.cluster_templates.models import Template
from clusters.frameworks import COMPUTING, ROLES
from clusters.manifest.cluster import ClusterManifest, ClusterName, ClusterSpec
from portal.access import VIEW, Capability, appcode_for, appcodes_for
from portal.errors import Invalid
from portal.events import record
from portal.manifests import AppcodeName, Manifest, Strict, field_error
from portal.manifests.appcode import Line
from portal.models import Appcode, User

# Maximum number of templates per user, and per appcode.
MOST = 100
MAX_DESCRIPTION = 200


class TemplateMetadata(Strict):
    """`appcode` is the owner; a personal template has none."""

    name: ClusterName
    appcode: AppcodeName | None = None
    description: Annotated[Line, StringConstraints(max_length=MAX_DESCRIPTION)] = Field(
        default="", examples=["Two workers on the digits, with a chart"]
    )


class TemplateManifest(Manifest):
    """`{"kind":"template","metadata":{"name","appcode","description"},"spec":{…}}`. The spec is a cluster's without its
    start time, which belongs to one cluster."""

    kind: Literal["template"] = "template"
    metadata: TemplateMetadata
    spec: ClusterSpec

    @field_validator("spec")
    @classmethod
    def _spec(cls, value: ClusterSpec) -> ClusterSpec:
        if value.framework not in COMPUTING:
            raise field_error("Templates are of clusters; of an application, clone it.", "framework")
        return value.model_copy(update={"schedule_after": None})


def templates_for(user: User) -> QuerySet[Template]:
    """Templates of the user and of their appcodes, with appcode and creator joined."""
    mine = Q(owner_id=user.pk) | Q(appcode__in=appcodes_for(user).order_by().values("pk"))
    return Template.objects.filter(mine).select_related("appcode", "created_by")


def own_templates(user: User) -> QuerySet[Template]:
    return templates_for(user).filter(owner_id=user.pk)


def templates_in(user: User, appcode: str) -> QuerySet[Template]:
    """The templates of one appcode. Raises Http404."""
    return templates_for(user).filter(appcode=appcode_for(user, appcode))


def in_short(templates: QuerySet[Template]) -> QuerySet[Template]:
    """For lists: without the specs, whose files may be large, but with the fields that the list shows."""
    return templates.defer("spec").annotate(image=F("spec__image"), roles=F("spec__roles"))


def in_words(template: Template) -> str:
    """For example "tensorflow: 1 master, 2 workers", for a template that was read with `in_short`."""
    image, roles = template.image, template.roles  # type: ignore[attr-defined]  # annotations
    counts = ((role, roles[role]["count"]) for role in ROLES if roles.get(role, {}).get("count"))
    tasks = (f"{count} {role}{'s' if count > 1 and role != 'ps' else ''}" for role, count in counts)
    return f"{image}: {', '.join(tasks)}"


def template_for(user: User, whose: str, name: str, capability: Capability = VIEW) -> Template:
    """`whose` is an appcode, or `Template.ME`. Raises Http404 (absent or not visible) or PermissionDenied."""
    if whose == Template.ME:
        rows = own_templates(user)
    else:
        rows = templates_for(user).filter(appcode=appcode_for(user, whose, capability))
    found = rows.filter(name=name).first()
    if found is None:
        where = "among your own" if whose == Template.ME else f"in {whose}"
        raise Http404(f"There is no template “{name}” {where}.")
    return found


def cluster_of(template: Template, appcode: str) -> ClusterManifest:
    """A cluster manifest from the template, in this appcode, with the template's name."""
    metadata = {"name": template.name, "appcode": appcode}
    return ClusterManifest.stored({"kind": "cluster", "metadata": metadata, "spec": template.spec})


@transaction.atomic
def create_template(manifest: TemplateManifest, appcode: Appcode | None, *, acting_user: User) -> Template:
    """Creates a template of `appcode` (the caller has checked the permission), or with None of the user. Raises Invalid."""
    rows = _locked(appcode, acting_user)
    name = manifest.metadata.name
    if rows.filter(name=name).exists():
        raise _taken(name, appcode)
    if rows.count() >= MOST:
        whose = f"{appcode.code} has" if appcode else "You have"
        raise Invalid.at("metadata", "name", message=f"{whose} {MOST} templates already; delete one.")
    made = Template.objects.create(
        appcode=appcode, owner=None if appcode else acting_user, name=name, description=manifest.metadata.description,
        spec=manifest.spec.model_dump(mode="json", by_alias=True), created_by=acting_user,
    )  # fmt: skip
    _record("template.created", made, acting_user, "Saved.")
    return made


@transaction.atomic
def change_template(template: Template, manifest: TemplateManifest, *, acting_user: User) -> Template:
    """Applies the manifest, including a new name. Idempotent. The caller has checked the permission. Raises Invalid,
    and Http404 if the template has been deleted."""
    rows = _locked(template.appcode, acting_user)
    found = rows.filter(pk=template.pk).first()
    if found is None:
        raise Http404(f"There is no template “{template.name}” any more.")
    name, spec = manifest.metadata.name, manifest.spec.model_dump(mode="json", by_alias=True)
    if rows.filter(name=name).exclude(pk=found.pk).exists():
        raise _taken(name, template.appcode)
    was, now = (found.name, found.description, found.spec), (name, manifest.metadata.description, spec)
    if was != now:
        found.name, found.description, found.spec = now
        found.save()
        _record("template.changed", found, acting_user, "Changed." if was[0] == name else f"Was called {was[0]}.")
    return found


@transaction.atomic
def delete_template(template: Template, *, acting_user: User) -> None:
    """Deletes the template. The caller has checked the permission. Clusters created from it stay as they are."""
    if Template.objects.filter(pk=template.pk).delete()[0]:
        _record("template.deleted", template, acting_user, "Deleted.")


def _locked(appcode: Appcode | None, user: User) -> QuerySet[Template]:
    """Locks the set of templates in which names are unique and counted, until the end of the transaction."""
    if appcode:
        Appcode.objects.select_for_update(of=("self",), no_key=True).get(pk=appcode.pk)
        return Template.objects.filter(appcode=appcode).select_related("appcode")
    User.objects.select_for_update(of=("self",), no_key=True).get(pk=user.pk)
    return Template.objects.filter(owner=user)


def _taken(name: str, appcode: Appcode | None) -> Invalid:
    whose = f"{appcode.code} has" if appcode else "You have"
    return Invalid.at("metadata", "name", message=f"{whose} a template “{name}” already.")


def _record(verb: str, template: Template, actor: User, message: str) -> None:
    code = template.appcode.code if template.appcode else ""
    name = f"{code}/{template.name}" if code else template.name
    record(verb, actor=actor, appcode=code, object=f"template {name}", message=message)
