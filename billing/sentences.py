"""Sentences that the search understands of money: “costs last month”, “spend ops-demo”, “costs of bob in October”."""

from __future__ import annotations

from urllib.parse import urlencode

from django.urls import reverse
from django.utils import timezone

from portal.access import appcodes_for, people_for
from portal.models import User
from portal.search import SYNONYMS, Hit, words_of
from portal.text.days import days_in

_COSTS = frozenset(("costs", *SYNONYMS["costs"]))


def costs(user: User, typed: str) -> list[Hit]:
    """Costs of an appcode, a person, or all, in some days, which are UTC's like all of billing. Nothing if a word is neither."""
    rest, days = days_in(typed, timezone.now().date())
    words = words_of(rest)
    names = {word.removesuffix("'s").removesuffix("’s") for word in words if word not in _COSTS}
    if len(names) == len(set(words)) or not (names or days):
        return []
    codes = sorted(appcodes_for(user).filter(code__in=names).values_list("code", flat=True)) if names else []
    people = sorted(people_for(user).filter(username__in=names).values_list("username", flat=True)) if names else []
    if names - {*codes, *people} or len(codes) > 1 or len(people) > 1:
        return []
    narrowed = {
        **({"user": people[0]} if people else {}),
        **({"appcode": codes[0]} if codes and people else {}),
        # This month is what the pages show at first.
        **({"from": f"{days.first}", "to": f"{days.last}"} if days and days.said != "this month" else {}),
    }
    page = reverse("dashboard") if people else reverse("billing_appcode", args=codes) if codes else reverse("billing")
    parts = ("Costs", *(f"by {name}" for name in people), *(f"of {code}" for code in codes), days.said if days else "")
    query = f"?{urlencode(narrowed)}" if narrowed else ""
    return [Hit(" ".join(filter(None, parts)), "Spending" if people else "", f"{page}{query}", "billing")]
