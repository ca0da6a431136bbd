"""Named hooks that an appcode saves for all its clusters.

A run keeps a copy of its hooks from submission. So a change applies to later runs, and a deleted hook is still done for runs
that have it. Whether the image and datastore that it names exist is checked where it is used.
"""

from __future__ import annotations

from typing import Annotated, Literal

from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404
from pydantic import Field, StringConstraints, field_validator

from clusters.hooks.models import Hook
from clusters.manifest.env import check_hook_env
from clusters.manifest.hook_spec import HookName, HookWork
from portal.access import OPERATE, VIEW, Capability, appcode_for, require
from portal.errors import Invalid
from portal.manifests import AppcodeName, Manifest, Strict, field_error
from portal.manifests.appcode import Line
from portal.manifests.kept import Kept, refuse_changes
from portal.models import Appcode, User
from portal.objects import Objects

MOST = 50
MAX_DESCRIPTION = 200


class HookMetadata(Strict):
    name: Annotated[HookName, Kept("A hook keeps its name: clusters use it by that.")]
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


HOOKS = Objects("hook", Hook.objects.select_related("appcode", "created_by"))


def hook_for(user: User, code: str, name: str, capability: Capability = VIEW) -> Hook:
    """Raises Http404 (missing or not theirs) or PermissionDenied."""
    appcode = appcode_for(user, code, capability)
    found = HOOKS.rows.filter(appcode=appcode, name=name).first()
    if found is None:
        raise Http404(f"{code} has no hook “{name}”.")
    return found


@transaction.atomic
def create_hook(manifest: HookManifest, appcode: Appcode, *, acting_user: User) -> Hook:
    """Raises Invalid for a taken name, and PermissionDenied."""
    rows = _locked(appcode, acting_user)
    if rows.filter(name=manifest.metadata.name).exists():
        raise _taken(appcode, manifest.metadata.name)
    if rows.count() >= MOST:
        raise Invalid.at("metadata", "name", message=f"{appcode.code} has {MOST} hooks already; delete one.")
    made = Hook.objects.create(
        appcode=appcode, name=manifest.metadata.name, description=manifest.metadata.description,
        spec=_stored(manifest), created_by=acting_user,
    )  # fmt: skip
    HOOKS.record(made, "created", acting_user, "Saved.")
    return made


@transaction.atomic
def change_hook(hook: Hook, manifest: HookManifest, *, acting_user: User) -> Hook:
    """Replaces the hook; sent twice, it is changed once. Raises Invalid, PermissionDenied, and Http404 if it was deleted."""
    found = HOOKS.locked(hook, acting_user)
    refuse_changes(manifest, name=found.name)
    was, now = (found.description, found.spec), (manifest.metadata.description, _stored(manifest))
    if was != now:
        found.description, found.spec = now
        found.save()
        HOOKS.record(found, "changed", acting_user, "Changed.")
    return found


@transaction.atomic
def delete_hook(hook: Hook, *, acting_user: User) -> None:
    """Deletes the hook. Clusters that use it cannot be deployed until they are changed. Raises PermissionDenied."""
    if _locked(hook.appcode, acting_user).filter(pk=hook.pk).delete()[0]:
        HOOKS.record(hook, "deleted", acting_user, "Deleted.")


def _stored(manifest: HookManifest) -> dict[str, object]:
    return manifest.spec.model_dump(mode="json", by_alias=True)


def _locked(appcode: Appcode, user: User) -> QuerySet[Hook]:
    """The appcode's hooks, locked until the end of the transaction, so that names are unique and the count is right."""
    require(user, appcode, OPERATE)
    Appcode.objects.select_for_update(of=("self",), no_key=True).get(pk=appcode.pk)
    return HOOKS.rows.filter(appcode=appcode)


def _taken(appcode: Appcode, name: str) -> Invalid:
    return Invalid.at("metadata", "name", message=f"{appcode.code} has a hook “{name}” already.")
