"""User actions on environments: listing what was installed in a running application, saving it, deleting a saved one.

The task is queried outside of any transaction, by our program run in its Python; its report is validated (installed.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from django.conf import settings
from django.db import transaction
from django.db.models import Max, Q
from django.utils import timezone
from pydantic import ValidationError

from clusters.environments.installed import MAX_PACKAGES, EnvironmentManifest, Found, digest_of, lock_of, some
from clusters.environments.models import Environment
from clusters.frameworks import FRAMEWORKS
from clusters.frameworks.programs import text
from clusters.runs.commands import answer_of
from clusters.runs.models import Cluster, Run
from portal.access import OPERATE, require
from portal.errors import Conflict, Invalid
from portal.events import record
from portal.models import Appcode, User
from portal.text.words import readable

FREEZE = text("freeze.py")
SHOWN_USES = 3


def what_is_new(cluster: Cluster, *, acting_user: User) -> Found:
    """What was installed over its image in a running application. Raises Conflict, Invalid or CloudError."""
    require(acting_user, cluster.appcode, OPERATE)
    return _ask(cluster, acting_user)


def save_environment(cluster: Cluster, manifest: EnvironmentManifest, *, acting_user: User) -> tuple[Environment, bool]:
    """Saves what was installed in the running application as the next version of that name. Returns it, and whether it is new:
    the same packages and script again are the existing version.

    Raises Conflict while nothing runs, Invalid for what cannot be saved, CloudError.
    """
    require(acting_user, cluster.appcode, OPERATE)
    if manifest.metadata.appcode != cluster.appcode.code:
        raise Invalid.at("metadata", "appcode", message="An environment is saved in the appcode of its application.")
    if cluster.appcode.why_not:
        raise Invalid.at("metadata", "appcode", message=cluster.appcode.why_not)
    found = _ask(cluster, acting_user, "lock")
    if found.elsewhere:
        sentence = (
            f"{some(found.elsewhere)} came from no package index and cannot be had again; put it there, or uninstall it here and "
            "install it in the script."
        )
        raise Invalid.at("spec", message=sentence)
    script = manifest.spec.script
    if not found.packages and not script:
        raise Invalid.at("spec", message="Nothing was installed over the image; there is nothing to save.")
    image = cluster.current_run.spec["image"]  # type: ignore[union-attr]  # `_ask` found it
    lock = lock_of(found)
    made = Environment(
        appcode=cluster.appcode,
        name=manifest.metadata.name,
        image=image,
        python=found.python,
        platform=found.platform,
        packages=found.rows,
        lock=lock,
        script=script,
        digest=digest_of(image, found, lock, script),
        application=cluster.name,
        created_by=acting_user,
    )
    return _keep(made, acting_user)


@transaction.atomic
def _keep(made: Environment, user: User) -> tuple[Environment, bool]:
    """Saves under the appcode's lock, so that version numbers are consecutive."""
    Appcode.objects.select_for_update(of=("self",), no_key=True).get(pk=made.appcode_id)
    own = Environment.objects.filter(appcode=made.appcode_id, name=made.name)
    newest = own.filter(deleted_at=None).order_by("-version").first()
    if newest is not None and newest.digest == made.digest:
        return newest, False
    count = Environment.objects.filter(appcode=made.appcode_id, deleted_at=None).count()
    if count >= settings.ENVIRONMENTS_PER_APPCODE:
        sentence = (
            f"{made.appcode.code} has {count} versions of environments, and no appcode may have more; delete some."
        )
        raise Invalid.at("metadata", "name", message=sentence)
    made.version = (own.aggregate(last=Max("version"))["last"] or 0) + 1
    made.save()
    new = sum(not row["was"] for row in made.packages)
    said = f"Saved from {made.application}: {new} new packages, {len(made.packages) - new} other versions."
    _record("environment.saved", made, user, said)
    return made, True


@transaction.atomic
def delete_environment(environment: Environment, *, acting_user: User, every_version: bool) -> None:
    """Deletes one version, or all of them. Raises Conflict naming what uses it."""
    require(acting_user, environment.appcode, OPERATE)
    Appcode.objects.select_for_update(of=("self",), no_key=True).get(pk=environment.appcode_id)
    rows = Environment.objects.filter(appcode=environment.appcode_id, name=environment.name, deleted_at=None)
    going = list(rows if every_version else rows.filter(version=environment.version))
    names = [str(each) for each in going] + ([environment.name] if len(going) == rows.count() else [])
    if uses := _uses(environment, names):
        more = f" and {len(uses) - SHOWN_USES} more" if len(uses) > SHOWN_USES else ""
        what = environment.name if every_version else str(environment)
        raise Conflict(f"{what} is used by {', '.join(uses[:SHOWN_USES])}{more}; change or delete them first.")
    for each in going:
        _record("environment.deleted", each, acting_user, "Deleted.")
    Environment.objects.filter(pk__in=[each.pk for each in going]).update(
        deleted_at=timezone.now(), lock="", script="", packages=[]
    )


def _uses(environment: Environment, names: Iterable[str]) -> list[str]:
    """Clusters defined with one of these, or with a run with it that is not gone."""
    asked = Q(spec__environment__in=list(names)) | Q(runs__gone=False, runs__spec__environment__in=list(names))
    found = Cluster.objects.filter(asked, appcode=environment.appcode_id, deleted_at=None).order_by("name")
    return list(found.values_list("name", flat=True).distinct())


def _ask(cluster: Cluster, user: User, *arguments: str) -> Found:
    """Runs freeze.py in the task of the application's run."""
    run, role = _running(cluster)
    said, errors, code = answer_of(run, role, ("python", "-c", FREEZE, *arguments), user=user)
    if code != 0:
        raise Invalid.at(
            "spec", message=f"What was installed cannot be saved: {readable(errors)[-600:] or f'exit code {code}'}"
        )
    try:
        return Found.model_validate_json(said)
    except ValidationError as error:
        if any(each["type"] == "too_long" for each in error.errors()):
            raise Invalid.at(
                "spec", message=f"At most {MAX_PACKAGES} packages; a larger set belongs into an image."
            ) from None
        raise Invalid.at("spec", message="What the task says of its packages cannot be understood.") from None


def _running(cluster: Cluster) -> tuple[Run, str]:
    run, framework = cluster.current_run, FRAMEWORKS[cluster.spec["framework"]]
    if not framework.has_layer:
        raise Conflict(f"What is installed in {framework.title} is not kept, so there is nothing to save.")
    role = framework.roles[0].name
    if run is None or not run.tasks.filter(role=role, index=0, phase="Running").exists():
        raise Conflict(f"{cluster.name} does not run; deploy it, and save what is installed there.")
    run.cluster = cluster
    return run, role


def _record(verb: str, environment: Environment, actor: User, message: str) -> None:
    code = environment.appcode.code
    record(verb, actor=actor, appcode=code, object=f"environment {code}/{environment}", message=message)


def can_be_saved(cluster: Cluster) -> bool:
    """Whether packages that users install in it are kept, so that they can be saved while it runs."""
    framework = FRAMEWORKS.get(cluster.spec.get("framework", ""))
    return framework is not None and framework.has_layer
