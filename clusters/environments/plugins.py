"""Administrators' actions on plugins: offering, changing and deleting one. Its lock is made here, before anybody uses it.

It is resolved over the packages of the image and the image's other plugins, so that users may combine them. On this machine
the image's folder shows its packages; for a container, a notebook that the administrator runs with it is queried.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from django.db import transaction
from django.db.models import Max, Q, QuerySet
from django.http import Http404
from django.utils import timezone
from pydantic import ValidationError

from clusters.catalog.locks import versions
from clusters.catalog.models import Image
from clusters.environments.actions import FREEZE
from clusters.environments.models import Plugin
from clusters.environments.plugin import PluginManifest
from clusters.environments.resolve import Installed, installed_in, resolved
from clusters.frameworks import FRAMEWORKS
from clusters.runs.commands import answer_of
from clusters.runs.models import Cluster, Run
from portal.access import require_administrator
from portal.errors import Conflict, Invalid
from portal.events import record
from portal.models import User

SHOWN_USES = 3


def plugins(image: str | None = None) -> QuerySet[Plugin]:
    """The newest version of each offered plugin, of one image or of all. Visible to everybody."""
    rows = Plugin.objects.filter(deleted_at=None, image__enabled=True).order_by("image__name", "name", "-version")
    return (
        (rows if image is None else rows.filter(image__name=image))
        .distinct("image__name", "name")
        .select_related("image")
    )


def plugins_of(image: str) -> QuerySet[Plugin]:
    """Plugins of one image. Raises Http404."""
    if not Image.objects.filter(name=image, enabled=True).exists():
        raise Http404(f"The catalogue has no image “{image}”.")
    return plugins(image)


def plugin_for(image: str, name: str) -> Plugin:
    """Initial values of a new form. Raises Http404."""
    found = plugins(image).filter(name=name).first()
    if found is None:
        raise Http404(f"With the image {image} no plugin “{name}” is offered.")
    return found


def save_plugin(manifest: PluginManifest, *, acting_user: User, new: bool) -> Plugin:
    """Offers a plugin, or its next version if its packages change. Raises Invalid, Conflict if it is `new` but exists, and
    CloudError from the notebook that is queried."""
    require_administrator(acting_user)
    name = manifest.metadata.name
    image = Image.objects.filter(name=manifest.metadata.image, enabled=True).first()
    if image is None:
        raise Invalid.at("metadata", "image", message=f"The catalogue has no image “{manifest.metadata.image}”.")
    others = [each for each in plugins(image.name) if each.name != name]
    besides = {package: version for each in others for package, version in versions(each.lock).items()}
    lock = resolved(manifest.spec.requirements, _installed(image, acting_user), besides)
    return offered(manifest, image, lock, acting_user=acting_user, new=new)


def offered(manifest: PluginManifest, image: Image, lock: str, *, acting_user: User, new: bool) -> Plugin:
    """`save_plugin` with a resolved lock."""
    require_administrator(acting_user)
    spec = manifest.spec
    return _keep(
        Plugin(
            image=image,
            name=manifest.metadata.name,
            title=spec.title,
            description=spec.description,
            requirements=list(spec.requirements),
            packages=[{"name": package, "version": version} for package, version in versions(lock).items()],
            lock=lock,
            digest=hashlib.sha256(lock.encode()).hexdigest(),
            created_by=acting_user,
        ),
        new,
    )


@transaction.atomic
def _keep(made: Plugin, new: bool) -> Plugin:
    """Saves under the image's lock, so that version numbers are consecutive."""
    Image.objects.select_for_update(no_key=True).get(pk=made.image_id)
    own = Plugin.objects.filter(image=made.image_id, name=made.name)
    newest = own.filter(deleted_at=None).order_by("-version").first()
    if new and newest is not None:
        raise Conflict(f"{made.image.title} has a plugin “{made.name}” already; change that one.")
    if newest is not None and newest.digest == made.digest:
        newest.title, newest.description, newest.requirements = made.title, made.description, made.requirements
        newest.save(update_fields=["title", "description", "requirements"])
        _record("plugin.changed", newest, made.created_by, "Its description was changed.")
        return newest
    made.version = (own.aggregate(last=Max("version"))["last"] or 0) + 1
    made.save()
    said = ", ".join(f"{each['name']} {each['version']}" for each in made.packages)
    _record("plugin.saved", made, made.created_by, f"{made.title}: {said[:400]}.")
    return made


@transaction.atomic
def delete_plugin(plugin: Plugin, *, acting_user: User) -> None:
    """Stops offering it. Raises Conflict naming what uses it."""
    require_administrator(acting_user)
    Image.objects.select_for_update(no_key=True).get(pk=plugin.image_id)
    rows = Plugin.objects.filter(image=plugin.image_id, name=plugin.name, deleted_at=None)
    uses = _uses(plugin, [plugin.name, *map(str, rows)])
    if uses:
        more = f" and {len(uses) - SHOWN_USES} more" if len(uses) > SHOWN_USES else ""
        raise Conflict(f"{plugin.name} is used by {', '.join(uses[:SHOWN_USES])}{more}; they would not start any more.")
    rows.update(deleted_at=timezone.now())
    _record("plugin.deleted", plugin, acting_user, "Not offered any more.")


def _uses(plugin: Plugin, names: Iterable[str]) -> list[str]:
    """Applications defined with one of these, or with a run with it that is not gone."""
    asked, own = Q(), {"spec__image": plugin.image.name}
    for name in names:
        asked |= Q(spec__plugins__contains=[name], **own)
        asked |= Q(
            runs__gone=False,
            runs__spec__plugins__contains=[name],
            **{f"runs__{key}": each for key, each in own.items()},
        )
    found = Cluster.objects.filter(asked, deleted_at=None).order_by("appcode__code", "name").select_related("appcode")
    return [str(each) for each in found.distinct()]


def _installed(image: Image, user: User) -> Installed:
    if image.environment and (found := installed_in(image.environment)) is not None:
        return found
    kinds = [name for name, driver in FRAMEWORKS.items() if driver.has_plugins]
    asked = Run.objects.filter(
        phase=Run.Phase.RUNNING, created_by=user, spec__image=image.name, spec__framework__in=kinds
    )
    run = asked.select_related("cluster__appcode").order_by("-id").first()
    if run is None:
        sentence = (
            f"What {image.title} has can only be asked where it runs: start a notebook with it, and save it then."
        )
        raise Invalid.at("metadata", "image", message=sentence)
    role = FRAMEWORKS[run.spec["framework"]].roles[0].name
    said, _, code = answer_of(run, role, ("python", "-c", FREEZE, "image"), user=user)
    try:
        return Installed.model_validate_json(said if code == 0 else b"")
    except ValidationError:
        sentence = f"What {run.cluster} says of its packages cannot be understood."
        raise Invalid.at("metadata", "image", message=sentence) from None


def _record(verb: str, plugin: Plugin, actor: User | None, message: str) -> None:
    record(verb, actor=actor, object=f"plugin {plugin.image.name}/{plugin}", message=message)
