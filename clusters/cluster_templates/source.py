"""Templates in the New Cluster form: cards of those changed last, and the fields of the one that was chosen."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import Q

from clusters.cluster.form.choices import Offer
from clusters.cluster.form.data import fields_of
from clusters.cluster.form.new import free_cluster_name
from clusters.cluster.form.sources import Source
from clusters.cluster.form.starters import Card
from clusters.cluster_templates.actions import cluster_of, in_short, in_words, template_for, templates_for
from clusters.cluster_templates.models import Template
from portal.models import User

# All templates are on a page of their own.
MOST_CARDS = 3


def _cards(user: User, offer: Offer) -> Sequence[Card]:
    """The user's own templates and those of the chosen appcode, those changed last. One query."""
    rows = templates_for(user).filter(Q(owner=user) | Q(appcode__code=offer.appcode))
    found = in_short(rows).order_by("-changed_at")[:MOST_CARDS]
    return [Card(each.name, each.description or in_words(each), "template", str(each), each.whose) for each in found]


def _fields(user: User, value: str, offer: Offer) -> dict[str, str]:
    whose, _, name = value.partition("/")
    template = template_for(user, whose, name)
    # A user who may not run anything yet sees that sentence instead of the form.
    fields = fields_of(cluster_of(template, offer.appcode or "none"))
    return fields | {"appcode": offer.appcode, "name": free_cluster_name(user, template.name)}


def _appcode(value: str, selected: str) -> str:
    whose = value.partition("/")[0]
    return selected or ("" if whose == Template.ME else whose)


SOURCE = Source("template", _fields, _appcode, _cards)
