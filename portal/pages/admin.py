"""Pages for platform administrators: requests, business lines, people, the audit log. Other users get 404."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import messages
from django.db.models import Count, Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import conditional_page, require_GET, require_POST, require_safe

from portal import access
from portal.actions import appcodes as appcodes_actions
from portal.actions import org as org_actions
from portal.actions import people as people_actions
from portal.actions import requests as requests_actions
from portal.errors import Conflict, Invalid
from portal.lending import Share
from portal.manifests.appcode import MAX_GPU_QUOTA, MAX_WEIGHT
from portal.models import Appcode, OrgNode, User
from portal.pages import decisions, layout
from portal.pages.appcodes import appcode_page, attempt, get_or_post, person
from portal.pages.forms import DaysForm, DecisionForm, OrgNodeForm, PersonForm, show_errors
from portal.web.downloads import csv_stream

View = Callable[..., HttpResponseBase]
# Rows per fetch for CSV.
CSV_PORTION = 2000


def for_administrators(view: View) -> View:
    @wraps(view)
    def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        access.require_administrator(person(request))
        return view(request, *args, **kwargs)

    return wrapped


# Appcodes


@require_GET
@for_administrators
def requests(request: HttpRequest) -> HttpResponse:
    return _requests(request)


@require_safe
@conditional_page
@for_administrators
def waiting(request: HttpRequest) -> HttpResponse:
    """The number of waiting requests for the navigation, empty for none."""
    count = decisions.waiting().count()
    return HttpResponse(f"{count:,}" if count else "")


def _requests(request: HttpRequest, typed: DecisionForm | None = None, of: str = "") -> HttpResponse:
    """Requests that wait for a decision, oldest first; expiring appcodes, and the number of appcodes by state."""
    counts = dict(Appcode.objects.values_list("state").annotate(n=Count("pk")))
    ending = Appcode.objects.filter(state=Appcode.State.ACTIVE, expires_on__lte=layout.soon())
    context = {
        "cards": decisions.cards(list(decisions.waiting()[: layout.PAGE]), typed, of), "counts": counts,
        "ending": ending.order_by("expires_on", "code")[: layout.PAGE],
    }  # fmt: skip
    return render(request, "portal/admin_appcodes.html", context)


@require_POST
@for_administrators
def decide(request: HttpRequest, code: str, verdict: str) -> HttpResponse:
    """approve, request-changes or refuse a request; disable or enable an appcode. Returns to the page with the button."""
    user = person(request)
    appcode = access.appcode_for(user, code)
    listed = request.POST.get("from") == "list"
    form = DecisionForm(request.POST, auto_id=f"id_{appcode.pk}_%s")
    done: dict[str, tuple[Callable[[], object], str]] = {
        "approve": (
            lambda: requests_actions.approve(appcode, form.granted(), acting_user=user),
            f"{code} is approved.",
        ),
        "request-changes": (
            lambda: requests_actions.request_changes(appcode, form.answered(), acting_user=user),
            f"The owners of {code} are asked for changes.",
        ),
        "refuse": (
            lambda: requests_actions.refuse(appcode, form.answered(), acting_user=user),
            f"The request for {code} is refused; its owners see why.",
        ),
        "disable": (
            lambda: appcodes_actions.disable_appcode(appcode, request.POST.get("note", ""), acting_user=user),
            f"{code} is disabled. What runs continues, and costs.",
        ),
        "enable": (lambda: appcodes_actions.enable_appcode(appcode, acting_user=user), f"{code} is enabled."),
    }
    action, said = done[verdict]
    try:
        action()
    except Conflict as error:
        messages.error(request, str(error))
    except Invalid as error:
        if verdict == "disable":
            messages.error(request, " ".join(item.message for item in error.errors))
        else:
            show_errors(form, error, form.PATHS)
            return _requests(request, form, code) if listed else appcode_page(request, appcode, typed=form)
    else:
        messages.success(request, said)
    return redirect("admin_appcodes") if listed else redirect("appcode", code)


@require_safe
@for_administrators
def share_effect(request: HttpRequest, code: str) -> HttpResponse:
    """A fragment for both forms: who gains and who loses by the typed values. What is no number yet counts as it is."""
    appcode = access.appcode_for(person(request), code)

    def typed(name: str, most: int, otherwise: int) -> int:
        said = layout.words(request, name)
        return min(int(said), most) if said.isascii() and said.isdecimal() else otherwise

    share = Share(typed("borrow", MAX_GPU_QUOTA, appcode.gpu_borrow), typed("weight", MAX_WEIGHT, appcode.weight))
    said = decisions.effect_of(appcode, typed("gpus", MAX_GPU_QUOTA, appcode.gpu_quota), share)
    return render(request, "portal/_effect.html", {"code": code, "effect": said})


# The organisation


@require_GET
@for_administrators
def org_nodes(request: HttpRequest) -> HttpResponse:
    nodes = OrgNode.objects.annotate(appcode_count=Count("appcodes")).order_by("path")
    found = layout.matching(nodes, layout.words(request), "path", "title", "namespace")
    return render(request, "portal/admin_orgs.html", {"nodes": found})


@get_or_post
@for_administrators
def org_node(request: HttpRequest, pk: int | None = None) -> HttpResponse:
    node = _org_node(pk) if pk else OrgNode()
    form = OrgNodeForm(
        request.POST or None, initial={"path": node.path, "title": node.title, "namespace": node.namespace or ""}
    )
    form.fields["path"].disabled = pk is not None
    if request.method == "POST" and form.is_valid():
        node.path, node.title = form.cleaned_data["path"], form.cleaned_data["title"]
        node.namespace = form.cleaned_data["namespace"] or None
        try:
            org_actions.save_org_node(node, acting_user=person(request))
        except Invalid as error:
            show_errors(form, error, {name: name for name in form.fields})
        else:
            messages.success(request, f"{node.path} is saved.")
            return redirect("admin_orgs")
    return render(request, "portal/admin_org.html", {"form": form, "node": node if pk else None})


@require_POST
@for_administrators
def delete_org_node(request: HttpRequest, pk: int) -> HttpResponse:
    node = _org_node(pk)
    attempt(request, lambda: org_actions.delete_org_node(node, acting_user=person(request)), f"{node.path} is deleted.")
    return redirect("admin_orgs")


def _org_node(pk: int) -> OrgNode:
    node = OrgNode.objects.filter(pk=pk).first()
    if node is None:
        raise Http404("There is no such org node.")
    return node


# People


@require_GET
@for_administrators
def people(request: HttpRequest) -> HttpResponse:
    rows = access.people_for(person(request)).annotate(appcode_count=Count("memberships"))
    kind = layout.words(request, "kind")
    kinds = {"administrators": Q(is_superuser=True), "inactive": Q(is_active=False)}
    rows = rows.filter(kinds[kind]) if kind in kinds else rows
    rows = layout.matching(rows, layout.words(request), "username", "first_name", "last_name", "email")
    found, following = layout.page_of(request, rows, "username")
    return render(request, "portal/admin_people.html", {"people": found, "next_cursor": following})


@get_or_post
@for_administrators
@never_cache
def new_person(request: HttpRequest) -> HttpResponse:
    """Only the response to the form contains the one-time password."""
    form = PersonForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            user, password = people_actions.create_person(**form.cleaned_data, acting_user=person(request))
        except Invalid as error:
            show_errors(form, error, {name: name for name in form.fields})
        else:
            return render(request, "portal/admin_password.html", {"person": user, "password": password, "new": True})
    return render(request, "portal/admin_person_new.html", {"form": form})


@require_GET
@for_administrators
def one_person(request: HttpRequest, username: str) -> HttpResponse:
    someone = _person(request, username)
    context = {
        "person": someone, "itself": someone.pk == person(request).pk,
        "memberships": someone.memberships.select_related("appcode").order_by("appcode__code"),
        "tokens": someone.auth_token_set.order_by("-created"),
        "activity": access.events_for(person(request)).filter(actor_id=someone.pk)[:20],
    }  # fmt: skip
    return render(request, "portal/admin_person.html", context)


@require_POST
@for_administrators
def change_person(request: HttpRequest, username: str, verb: str) -> HttpResponse:
    """activate, deactivate, administrator (grant the rights) or member (revoke them)."""
    me, someone = person(request), _person(request, username)
    try:
        if verb in ("activate", "deactivate"):
            orphans = people_actions.set_person_active(someone, verb == "activate", acting_user=me)
            messages.success(
                request, f"{username} {'may sign in again' if verb == 'activate' else 'is out, with all tokens'}."
            )
            if orphans:
                messages.warning(
                    request, f"Now without an active owner: {', '.join(orphans)}. Name somebody else there."
                )
        else:
            people_actions.set_administrator(someone, verb == "administrator", acting_user=me)
            messages.success(
                request, f"{username} is {'a' if verb == 'administrator' else 'no'} platform administrator now."
            )
    except Conflict as error:
        messages.error(request, str(error))
    return redirect("admin_person", username)


@require_POST
@for_administrators
@never_cache
def reset_password(request: HttpRequest, username: str) -> HttpResponse:
    someone = _person(request, username)
    password = people_actions.reset_password(someone, acting_user=person(request))
    return render(request, "portal/admin_password.html", {"person": someone, "password": password})


def _person(request: HttpRequest, username: str) -> User:
    someone = access.people_for(person(request)).filter(username=username).first()
    if someone is None:
        raise Http404(f"There is nobody called “{username}”.")
    return someone


# The log


@require_GET
@for_administrators
def audit(request: HttpRequest) -> HttpResponseBase:
    """The Event log, filtered by words, days in UTC (`?from=`, `?to=`), person, appcode and kind; `?format=csv` exports
    all matches."""
    rows = access.events_for(person(request))
    if code := layout.words(request, "appcode"):
        rows = rows.filter(appcode=code)
    if actor := layout.words(request, "actor"):
        rows = rows.filter(actor_name=actor)
    if kind := layout.words(request, "kind"):
        rows = rows.filter(Q(verb=kind) | Q(verb__startswith=f"{kind}."))
    form = DaysForm(request.GET)
    form.is_valid()
    if since := form.cleaned_data.get("from"):
        rows = rows.filter(at__date__gte=since)
    if last := form.cleaned_data.get("to"):
        rows = rows.filter(at__date__lte=last)
    rows = layout.matching(rows, layout.words(request), "actor_name", "verb", "object", "appcode", "message")
    if layout.words(request, "format") == "csv":
        columns = ("at", "actor_name", "verb", "appcode", "object", "message")
        head = ("at", "who", "what", "appcode", "object", "details")
        every = rows.order_by("-id").values_list(*columns).iterator(CSV_PORTION)
        return csv_stream("audit", head, ((f"{at:%FT%TZ}", *rest) for at, *rest in every))
    found, following = layout.page_of(request, rows, "-id")
    kinds, names = access.recent_names(person(request))
    context = {"events": found, "next_cursor": following, "form": form, "kinds": kinds, "names": names}
    return render(request, "portal/admin_audit.html", context)
