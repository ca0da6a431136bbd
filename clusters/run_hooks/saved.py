"""Hooks that an appcode has for all of its clusters, by name.

A run keeps a copy of what its hooks said when it was submitted, so a change of one counts for the runs that follow, and one
that is deleted is done after the runs that have it. Whether the image or datastore that it names is there is
judged where it is used.
"""

from __future__ import annotations

from typing import Annotated, Literal

from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404
from pydantic import Field, StringConstraints, field_validator

from clusters.after import HookName, HookWork
from clusters.manifest import check_hook_env
from clusters.models import Hook
from portal.access import OPERATE, VIEW, Capability, appcode_for, require
from portal.errors import Invalid
from portal.events import record
from portal.manifests import AppcodeName, Manifest, Strict, field_error
from portal.models import Appcode, User
from portal.specs import Line

MOST = 50
MAX_DESCRIPTION = 200


class HookMetadata(Strict):
    name: HookName
    appcode: AppcodeName
    description: Annotated[Line, StringConstraints(max_length=MAX_DESCRIPTION)] = Field(
        default="", examples=["Tells the team's chat how it went"]
    )


class HookManifest(Manifest):
    """`{"kind":"hook","metadata":{"name","appcode","description"},"spec":{…}}`."""

    kind: Literal["hook"] = "hook"
    metadata: HookMetadata
    spec: HookWork

    @field_validator("spec")
    @classmethod
    def _spec(cls, value: HookWork) -> HookWork:
        if value.command is None:
            raise field_error("Say what to run.", "command")
        check_hook_env(value.env)
        return value


def hooks_in(user: User, code: str) -> QuerySet[Hook]:
    """Those of an appcode, with it and their creator joined. Raises Http404."""
    return Hook.objects.filter(appcode=appcode_for(user, code)).select_related("appcode", "created_by")


def hook_for(user: User, code: str, name: str, capability: Capability = VIEW) -> Hook:
    """Raises Http404 (absent or not theirs) or PermissionDenied."""
    appcode = appcode_for(user, code, capability)
    found = Hook.objects.filter(appcode=appcode, name=name).select_related("appcode", "created_by").first()
    if found is None:
        raise Http404(f"{code} has no hook “{name}”.")
    return found


@transaction.atomic
def create_hook(manifest: HookManifest, appcode: Appcode, *, acting_user: User) -> Hook:
    """Raises Invalid for a name that is taken, and PermissionDenied."""
    rows = _locked(appcode, acting_user)
    if rows.filter(name=manifest.metadata.name).exists():
        raise _taken(appcode, manifest.metadata.name)
    if rows.count() >= MOST:
        raise Invalid.at("metadata", "name", message=f"{appcode.code} has {MOST} hooks already; delete one.")
    made = Hook.objects.create(
        appcode=appcode, name=manifest.metadata.name, description=manifest.metadata.description,
        spec=_stored(manifest), created_by=acting_user,
    )  # fmt: skip
    _record("hook.created", made, acting_user, "Saved.")
    return made


@transaction.atomic
def change_hook(hook: Hook, manifest: HookManifest, *, acting_user: User) -> Hook:
    """Makes it as the manifest says; sent twice, it is changed once. Raises Invalid, PermissionDenied, and Http404 where it was
    deleted meanwhile."""
    rows = _locked(hook.appcode, acting_user)
    found = rows.filter(pk=hook.pk).first()
    if found is None:
        raise Http404(f"There is no hook “{hook.name}” any more.")
    if manifest.metadata.name != found.name:
        raise Invalid.at("metadata", "name", message="A hook keeps its name: clusters use it by that.")
    was, now = (found.description, found.spec), (manifest.metadata.description, _stored(manifest))
    if was != now:
        found.description, found.spec = now
        found.save()
        _record("hook.changed", found, acting_user, "Changed.")
    return found


@transaction.atomic
def delete_hook(hook: Hook, *, acting_user: User) -> None:
    """Clusters that use it can be deployed again when they say otherwise. Raises PermissionDenied."""
    if _locked(hook.appcode, acting_user).filter(pk=hook.pk).delete()[0]:
        _record("hook.deleted", hook, acting_user, "Deleted.")


def _stored(manifest: HookManifest) -> dict[str, object]:
    return manifest.spec.model_dump(mode="json", by_alias=True)


def _locked(appcode: Appcode, user: User) -> QuerySet[Hook]:
    """Those among which names are unique and counted, for this transaction alone."""
    require(user, appcode, OPERATE)
    Appcode.objects.select_for_update(of=("self",), no_key=True).get(pk=appcode.pk)
    return Hook.objects.filter(appcode=appcode).select_related("appcode", "created_by")


def _taken(appcode: Appcode, name: str) -> Invalid:
    return Invalid.at("metadata", "name", message=f"{appcode.code} has a hook “{name}” already.")


def _record(verb: str, hook: Hook, actor: User, message: str) -> None:
    code = hook.appcode.code
    record(verb, actor=actor, appcode=code, object=f"hook {code}/{hook.name}", message=message)
