"""Pull secrets: registry credentials for the images of a business line.

They are stored encrypted and never shown. Each run on Kubernetes gets them in its own Secret, which only the kubelet
reads and which is deleted with the run. A change also reaches live runs, which then retry a failed pull.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated

from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404
from pydantic import AfterValidator, Field, StringConstraints

from clusters import wakeups
from clusters.clouds.kinds import OWN
from clusters.manifest.code import HOST
from clusters.pull_secrets.models import PullSecret
from clusters.runs.models import Run
from portal.access import require_administrator
from portal.errors import Invalid
from portal.events import record
from portal.manifests import Strict
from portal.models import OrgNode, User

MOST = 20


def _printable(value: str) -> str:
    if not value.isprintable() or ":" in value:
        raise ValueError("Use printable characters without ':'.")
    return value


def _one_line(value: str) -> str:
    if not value.isprintable():
        raise ValueError("A password is one line.")
    return value


class PullSecretSpec(Strict):
    """A user name and a password, or token, as `docker login` takes them."""

    username: Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(_printable)] = Field(
        examples=["robot$training"]
    )
    password: Annotated[str, StringConstraints(min_length=1, max_length=10_000), AfterValidator(_one_line)] = Field(
        description="Never shown again. One that may only pull is enough."
    )


def pull_secrets(user: User) -> QuerySet[PullSecret]:
    """All pull secrets. Raises Http404 unless the user is an administrator."""
    require_administrator(user)
    return PullSecret.objects.select_related("line", "created_by")


def registries_of(namespace: str) -> Mapping[str, tuple[str, str]]:
    """(user name, password) by registry for the business line with this namespace. One query."""
    found = PullSecret.objects.filter(line__namespace=namespace)
    return {each.host: (each.username, each.password) for each in found}


def line_at(path: str) -> OrgNode:
    """The business line at this path. Raises Http404 when there is none."""
    found = OrgNode.objects.filter(path=path, namespace__isnull=False).first()
    if found is None:
        raise Http404(f"There is no business line “{path}”.")
    return found


@transaction.atomic
def save_secret(line: OrgNode, host: str, spec: PullSecretSpec, *, acting_user: User) -> PullSecret:
    """Saves the credentials that the line's images are pulled with from now on. Raises Invalid."""
    require_administrator(acting_user)
    if not HOST.fullmatch(host):
        message = "Write the registry as image names begin: registry.example.com, registry.example.com:5000, docker.io."
        raise Invalid.at("host", message=message)
    OrgNode.objects.select_for_update(of=("self",), no_key=True).get(pk=line.pk)
    rows = PullSecret.objects.filter(line=line)
    if not rows.filter(host=host).exists() and rows.count() >= MOST:
        raise Invalid.at("host", message=f"A business line has secrets for at most {MOST} registries; remove one.")
    values = {"username": spec.username, "password": spec.password, "created_by": acting_user}
    made, _ = PullSecret.objects.update_or_create(line=line, host=host, defaults=values)
    _changed(made, "saved", acting_user)
    return made


@transaction.atomic
def remove_secret(path: str, host: str, *, acting_user: User) -> None:
    """Raises Http404."""
    found = pull_secrets(acting_user).select_for_update(of=("self",)).filter(line__path=path, host=host).first()
    if found is None:
        raise Http404(f"{path} has no pull secret for “{host}”.")
    _changed(found, "removed", acting_user)
    found.delete()


def _changed(secret: PullSecret, how: str, actor: User) -> None:
    record(
        f"registry.{how}",
        actor=actor,
        object=f"pull secret {secret.line.path}/{secret.host}",
        message=f"Pull secret {how}; runs of {secret.line.path} are applied again.",
    )
    living = Run.objects.filter(namespace=secret.line.namespace, gone=False, verdict="")
    runs = living.exclude(cloud__in=OWN)
    for pk in list(runs.values_list("pk", flat=True)):
        transaction.on_commit(partial(wakeups.wake, pk))
    # A concurrent apply may have read the old secret.
    runs.update(applied_at=None, claim_token=None, claimed_until=None)
