"""Templates: clusters that were saved to start from, one's own or those of an appcode.

One idea: a template is the definition of a cluster without its name, judged as a manifest is and no further. Whether what it
names is still there is said when somebody uses it, beside the field that names it; nothing of it is lost by then. The files of
its code travel with it; the tokens of Git servers and of people are in no definition.
"""

from __future__ import annotations

from typing import Annotated, Literal

from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.http import Http404
from pydantic import Field, StringConstraints, field_validator

from clusters.frameworks import COMPUTING, ROLES
from clusters.manifest import ClusterManifest, ClusterName, ClusterSpec
from clusters.models import Template
from portal.access import VIEW, Capability, appcode_for, appcodes_for
from portal.errors import Invalid
from portal.events import record
from portal.manifests import AppcodeName, Manifest, Strict, field_error
from portal.models import Appcode, User
from portal.specs import Line

# Of one person, and of one appcode.
MOST = 100
MAX_DESCRIPTION = 200


class TemplateMetadata(Strict):
    """`appcode` is whose it is; one's own has none."""

    name: ClusterName
    appcode: AppcodeName | None = None
    description: Annotated[Line, StringConstraints(max_length=MAX_DESCRIPTION)] = Field(
        default="", examples=["Two workers on the digits, with a chart"]
    )


class TemplateManifest(Manifest):
    """`{"kind":"template","metadata":{"name","appcode","description"},"spec":{…}}`; the spec is a cluster's, without a time to
    start at: that is of one cluster alone."""

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
    """One's own and those of one's appcodes, with appcode and creator joined."""
    mine = Q(owner_id=user.pk) | Q(appcode__in=appcodes_for(user).order_by().values("pk"))
    return Template.objects.filter(mine).select_related("appcode", "created_by")


def own_templates(user: User) -> QuerySet[Template]:
    return templates_for(user).filter(owner_id=user.pk)


def templates_in(user: User, appcode: str) -> QuerySet[Template]:
    """Those of one appcode. Raises Http404."""
    return templates_for(user).filter(appcode=appcode_for(user, appcode))


def in_short(templates: QuerySet[Template]) -> QuerySet[Template]:
    """For lists: without the specs, whose files may be large, but with what is shown of them."""
    return templates.defer("spec").annotate(image=F("spec__image"), roles=F("spec__roles"))


def in_words(template: Template) -> str:
    """ "tensorflow: 1 master, 2 workers" of one that was read `in_short`."""
    image, roles = template.image, template.roles  # type: ignore[attr-defined]  # annotations
    counts = ((role, roles[role]["count"]) for role in ROLES if roles.get(role, {}).get("count"))
    tasks = (f"{count} {role}{'s' if count > 1 and role != 'ps' else ''}" for role, count in counts)
    return f"{image}: {', '.join(tasks)}"


def template_for(user: User, whose: str, name: str, capability: Capability = VIEW) -> Template:
    """`whose` is the code of an appcode, or `Template.ME`. Raises Http404 (absent or not theirs) or PermissionDenied."""
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
    """A cluster that is as the template says, in this appcode and by the template's name."""
    metadata = {"name": template.name, "appcode": appcode}
    return ClusterManifest.model_validate({"kind": "cluster", "metadata": metadata, "spec": template.spec})


@transaction.atomic
def create_template(manifest: TemplateManifest, appcode: Appcode | None, *, acting_user: User) -> Template:
    """A template of `appcode`, in which the caller has found that the user may operate, or with None the user's own. Raises
    Invalid."""
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
    """Makes the template as the manifest says, with another name, too; sent twice, it is changed once. The caller has asked
    whether the user may. Raises Invalid, and Http404 where it was deleted meanwhile."""
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
    """The caller has asked whether the user may. Clusters that were started from it stay as they are."""
    if Template.objects.filter(pk=template.pk).delete()[0]:
        _record("template.deleted", template, acting_user, "Deleted.")


def _locked(appcode: Appcode | None, user: User) -> QuerySet[Template]:
    """The templates among which names are unique and counted, for this transaction alone."""
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
