"""What features above fill the New Cluster form with: a saved template, a trial of a sweep.

The form knows no feature. Each registers itself once, in `apps.py`, under the query parameter that names one of its things.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clusters.cluster.form.choices import Offer
from clusters.cluster.form.starters import Card
from portal.extension_points import ExtensionPoint
from portal.models import User


def no_cards(user: User, offer: Offer) -> Sequence[Card]:
    return ()


@dataclass(frozen=True)
class Source:
    """`fields(user, value, offer)` returns the fields of the form, by name; it raises Http404 for what the user may not see.
    `appcode(value, selected)` returns the appcode that the form starts in, "" for none; `selected` is the page's. `cards` are
    shown above an empty form; a source without any takes their place."""

    parameter: str
    fields: Callable[[User, str, Offer], dict[str, str]]
    appcode: Callable[[str, str], str]
    cards: Callable[[User, Offer], Sequence[Card]] = no_cards


sources: ExtensionPoint[Source] = ExtensionPoint()
