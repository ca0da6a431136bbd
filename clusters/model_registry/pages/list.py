"""The list of models."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from clusters.model_registry.access import models_for, with_aliases
from portal.access import OPERATE, may_somewhere
from portal.pages.appcodes import person
from portal.pages.layout import listed, page_of, words


@require_safe
def models(request: HttpRequest) -> HttpResponse:
    user = person(request)
    found = listed(request, models_for(user).prefetch_related(with_aliases()), "name", "description")
    page, following = page_of(request, found, "-id")
    context = {
        "rows": page,
        "next_cursor": following,
        "searched": words(request) or request.GET.get("cursor", ""),
        "may_register": may_somewhere(user, OPERATE),
    }
    return render(request, "clusters/model_registry/models.html", context)
