"""The page of a datastore's rules. A rule can only be saved as it was previewed; a changed one is previewed again."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST

from datastores.access import datastore_for, rule_for
from datastores.drivers.base import DriverError
from datastores.drivers.patience import within
from datastores.files import rules
from datastores.files.downloads import COUNT_SECONDS
from datastores.files.pages import ROWS
from datastores.files.retention import RuleSpec
from datastores.models import TRASH_KEPT, Datastore
from datastores.pages.forms import RuleForm
from portal.access import OPERATE
from portal.api.problems import Unavailable
from portal.errors import Conflict, Invalid
from portal.models import User
from portal.pages.appcodes import get_or_post, person
from portal.pages.forms import show_errors
from portal.web.limits import LOOKS


@get_or_post
def rules_page(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """The rules, the preview of one of them (`?rule=`), and the form of a new one."""
    user = person(request)
    store = datastore_for(user, appcode, name, OPERATE)
    form = RuleForm(request.POST if request.method == "POST" else None, initial={"path": request.GET.get("folder", "")})
    page: dict[str, Any] = {"store": store, "form": form, "kept": TRASH_KEPT.days, "now": timezone.now()}
    chosen = request.GET.get("rule", "")
    if request.method == "POST":
        try:
            spec = form.spec()
            if request.POST.get("do") == "save" and request.POST.get("seen") == spec.words:
                with LOOKS.enter(user.pk), within(COUNT_SECONDS):
                    rules.add(store, spec, acting_user=user)
                messages.success(request, f"Saved: {spec.words}. It is applied in a minute, and then every day.")
                return redirect("datastore_rules", appcode, name)
            page |= _previewed(user, store, spec) | {"is_new": True}
        except Invalid as error:
            show_errors(form, error, {field: field for field in form.fields})
        except (Conflict, DriverError, Unavailable) as error:
            page["trouble"] = str(error)
    elif chosen.isascii() and chosen.isdecimal() and len(chosen) < 19:
        try:
            page |= _previewed(user, store, rule_for(user, appcode, name, int(chosen)).spec)
        except (Conflict, DriverError, Unavailable) as error:
            page["trouble"] = str(error)
    page["rows"] = store.rules.select_related("created_by").order_by("-pk")
    return render(request, "datastores/rules.html", page)


@require_POST
def forget(request: HttpRequest, appcode: str, name: str, rule: int) -> HttpResponse:
    user = person(request)
    found = rule_for(user, appcode, name, rule)
    rules.forget(found, acting_user=user)
    messages.success(request, f"Nothing goes by this rule any more: {found.spec.words}.")
    return redirect("datastore_rules", appcode, name)


def _previewed(user: User, store: Datastore, spec: RuleSpec) -> dict[str, Any]:
    with LOOKS.enter(user.pk), within(COUNT_SECONDS):
        found = rules.preview(store, spec)
    return {"spec": spec, "found": found, "shown": found.going[:ROWS], "left": len(found.going[ROWS:])}
