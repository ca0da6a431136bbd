"""Business lines: the tree that owns appcodes."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.db import models, transaction

from portal import events
from portal.access import require_administrator
from portal.errors import Conflict, FieldError, Invalid
from portal.manifests.appcode import no_formula, one_line
from portal.models import Appcode, OrgNode, User


@transaction.atomic
def save_org_node(node: OrgNode, *, acting_user: User) -> OrgNode:
    """Adds or changes a node. Raises Invalid at ("path",), ("title",) or ("namespace",). The namespace of a business
    line with appcodes below it cannot change: their runs and volumes live there."""
    require_administrator(acting_user)
    node.namespace, node.title = node.namespace or None, node.title.strip()
    try:
        one_line(no_formula(node.title))
    except ValueError as error:
        raise Invalid.at("title", message=str(error)) from error
    new = node.pk is None
    old = None if new else OrgNode.objects.select_for_update().get(pk=node.pk)
    if old and old.path != node.path:
        raise Invalid.at("path", message="A path cannot be changed; add another node.")
    if old and old.namespace and old.namespace != node.namespace and _appcodes_below(old).exists():
        raise Invalid.at(
            "namespace", message=f"Appcodes below live in “{old.namespace}”; it cannot be changed any more."
        )
    try:
        node.full_clean()
    except ValidationError as error:
        raise Invalid(
            [FieldError((name,), said) for name, sentences in error.message_dict.items() for said in sentences]
        ) from error
    node.save()
    line = f"business line with namespace {node.namespace}" if node.namespace else "no namespace of its own"
    events.record(
        "org.created" if new else "org.changed",
        actor=acting_user,
        object=f"org {node.path}",
        message=f"{node.title or node.path}: {line}",
    )
    return node


@transaction.atomic
def delete_org_node(node: OrgNode, *, acting_user: User) -> None:
    require_administrator(acting_user)
    if count := node.appcodes.count():
        raise Conflict(f"{node.path} owns {count} appcodes; move them to another node first.")
    if node.namespace and _appcodes_below(node).exists():
        raise Conflict(f"Appcodes below {node.path} live in its namespace “{node.namespace}”.")
    events.record("org.deleted", actor=acting_user, object=f"org {node.path}")
    node.delete()


def _appcodes_below(node: OrgNode) -> models.QuerySet[Appcode]:
    return Appcode.objects.filter(models.Q(org_node=node) | models.Q(org_node__path__startswith=f"{node.path}."))
