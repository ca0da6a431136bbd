"""The page of an appcode's object storage: usage, keys, and commands for clients. A secret is shown once, in the
response to the button that made it, which browsers must not cache."""

from __future__ import annotations

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from datastores.models import Storage
from datastores.storage import actions, limits
from datastores.storage.access import datastore_of, storage_of
from datastores.storage.commands import commands
from datastores.storage.store import KeyPair
from portal.access import OPERATE, appcode_for, may, require_administrator
from portal.api.problems import Unavailable
from portal.errors import Conflict
from portal.models import Appcode
from portal.pages.appcodes import attempt, person
from portal.web.limits import LOOKS


@require_GET
def storage(request: HttpRequest, appcode: str) -> HttpResponse:
    found = appcode_for(person(request), appcode)
    return _page(request, found, storage_of(found))


@require_POST
@never_cache
def keys(request: HttpRequest, appcode: str) -> HttpResponse:
    """Switches the storage on or makes new keys; the page then shows the secret."""
    found = appcode_for(person(request), appcode, OPERATE)
    row = storage_of(found)
    try:
        with LOOKS.enter(person(request).pk):  # the store may take long to start
            if row is None or not row.own_key:
                row, made = actions.switch_on(found, acting_user=person(request))
            else:
                made = actions.refresh_keys(row, acting_user=person(request))
    except (Conflict, Unavailable) as error:
        messages.error(request, str(error))
        return redirect("storage", found.code)
    return _page(request, found, row, made)


@require_POST
def stop(request: HttpRequest, appcode: str) -> HttpResponse:
    found = appcode_for(person(request), appcode, OPERATE)
    if row := storage_of(found):
        attempt(request, lambda: actions.stop_keys(row, acting_user=person(request)), "The keys are stopped.")
    return redirect("storage", found.code)


@require_POST
def limit(request: HttpRequest, appcode: str) -> HttpResponse:
    """For administrators."""
    found = appcode_for(person(request), appcode)
    row, typed = storage_of(found), request.POST.get("limit", "")
    require_administrator(person(request))
    gib = int(typed) if typed.isascii() and typed.isdigit() and len(typed) < 19 else 0
    if row:
        done = f"The bucket may have {gib:,} GiB."
        attempt(request, lambda: limits.set_limit(row, gib, acting_user=person(request)), done)
    return redirect("storage", found.code)


def _page(request: HttpRequest, appcode: Appcode, row: Storage | None, made: KeyPair | None = None) -> HttpResponse:
    told = settings.STORAGE
    context = {
        "appcode": appcode,
        "storage": row,
        "made": made,
        "endpoint": told["url"],
        "datastore": datastore_of(row) if row else None,
        "may_operate": may(person(request), appcode, OPERATE),
        "limit": row.limit_gib * 2**30 if row else 0,
        "percent": limits.percent(row) if row else 0,
        "is_nearly_full": row is not None and limits.percent(row) >= limits.STEPS[0],
        "may_limit": person(request).is_administrator,
    }
    if row:
        secret = made.secret_key if made else ""
        context["commands"] = commands(told["url"], told["region"], row.bucket, row.access_key or "", secret)
    return render(request, "datastores/storage.html", context)
