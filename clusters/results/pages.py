"""The table of an appcode's results: its page, the part of it that follows living runs, a CSV, its views, and notes on runs."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import conditional_page, require_http_methods, require_POST, require_safe

from clusters.access import run_for
from clusters.frameworks import COMPUTING
from clusters.results.access import views_of
from clusters.results.actions import add_tags, keep_own, keep_view, tags_in, write_notes
from clusters.results.export import csv_of
from clusters.results.query import ROWS
from clusters.results.table import table_of
from clusters.results.view import RUN_NAME, Column, View, link_of
from clusters.runs.models import Run
from portal.access import OPERATE, appcode_for, appcodes_for, may
from portal.errors import Invalid
from portal.models import Appcode
from portal.pages.appcodes import person, safe_next
from portal.pages.charts import LINES
from portal.pages.layout import of_one_appcode, selected_appcode
from portal.text.markdown import html_of
from portal.web.downloads import csv_stream

# Appcodes offered where somebody has several and has chosen none.
OFFERED = 100
MAX_QUERY = 20_000
# Offered as filters: what people look for among results.
STATES = (Run.Phase.RUNNING, Run.Phase.SUCCEEDED, Run.Phase.FAILED)
RUN = Column("field", "run")


def view_of(request: HttpRequest) -> View:
    return View.read(dict(request.GET.lists()))


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """Leads to the results of the selected appcode, else to those of the appcode in which the person ran something last."""
    user = person(request)
    view = view_of(request).query

    def those(code: str) -> HttpResponse:
        return redirect(reverse("results_of", args=[code]) + (f"?{view}" if view else ""))

    if code := selected_appcode(request):
        return those(appcode_for(user, code).code)
    mine = appcodes_for(user)
    last = Run.objects.filter(
        created_by=user, cluster__appcode__in=mine.order_by().values("pk"), cluster__deleted_at=None
    )
    last = last.filter(cluster__framework__in=list(COMPUTING)).order_by("-phase_since")
    code = last.values_list("cluster__appcode__code", flat=True).first() or ""
    offered = list(mine.select_related(None).order_by("code").only("code", "name")[: OFFERED + 1])
    if code or len(offered) == 1:
        return those(code or offered[0].code)
    return render(request, "clusters/results/choose.html", {"appcodes": offered[:OFFERED], "view": view})


@require_safe
def results(request: HttpRequest, code: str) -> HttpResponse:
    """The page. Without a query it leads to the view that the person chose last, or else to that of the appcode."""
    user = person(request)
    appcode = appcode_for(user, code)
    own, common, named, texts = views_of(user, appcode)
    if not request.GET and (own or common):
        return redirect(f"{reverse('results_of', args=[code])}?{own or common}")
    context = {
        "common": common,
        "named": [(name, link_of(name, query)) for name, query in named.items()],
        **of_one_appcode(appcode.code, "results"),
        **context_of(request, appcode, view_of(request)),
    }
    seen = context["table"].view.but()
    context["is_common"] = bool(common) and seen.address == _rows_of(common)
    same = [name for name, query in named.items() if _rows_of(query) == seen.address]
    said = request.GET.get("view", "")
    context["view_name"] = said if said in same else next(iter(same), "")
    context["text"] = texts.get(context["view_name"], "")
    context["report"] = html_of(context["text"])
    return shown(request, render(request, "clusters/results/results.html", context), context["table"].view)


def shown(request: HttpRequest, response: HttpResponse, view: View) -> HttpResponse:
    """The response, with the address of the view for the browser: forms send empty fields, too."""
    if request.headers.get("HX-Request"):
        response["HX-Push-Url"] = f"{request.path}?{view.address}"
    return response


def context_of(request: HttpRequest, appcode: Appcode, view: View) -> dict[str, Any]:
    """What `_view.html` needs, for the pages in which the table stands."""
    found = table_of(appcode, view)
    phases = [
        (str(phase), view.but(state="" if view.state == phase else str(phase)).query, view.state == phase)
        for phase in STATES
    ]
    return {
        "table": found,
        "most_lines": LINES,
        "may_operate": may(person(request), appcode, OPERATE),
        "link": request.build_absolute_uri(),
        "states": phases,
        "without": {name: view.but(**{name: ""}).address for name in ("who", "tag", "group")},
        "group_links": [(view.but(group=key).query, label, key == view.group) for key, label in found.group_choices],
        "charts_turned": view.but(charts=not view.charts, page=view.page).address,
        "by_name": view.sorted_by(RUN).address,
    }


@require_safe
@conditional_page
def table(request: HttpRequest, code: str) -> HttpResponse:
    """The rows alone, for pages that follow living runs. Answers 304 while they are unchanged."""
    appcode = appcode_for(person(request), code)
    return render(request, "clusters/results/_rows.html", context_of(request, appcode, view_of(request)))


@require_safe
def csv(request: HttpRequest, code: str) -> HttpResponseBase:
    """What is shown, of all rows of the view."""
    appcode = appcode_for(person(request), code)
    head, rows = csv_of(appcode, view_of(request))
    return csv_stream(f"results-{appcode.code}", head, rows)


@require_POST
def choose_columns(request: HttpRequest, code: str) -> HttpResponse:
    """Shows the ticked columns (`c`), and remembers them for the person; `reset` goes back to those that tell rows apart.
    `turned` is the query of a view with charts that had none, or the other way round."""
    user = person(request)
    appcode = appcode_for(user, code)
    view, back = _posted(request), safe_next(request, reverse("results_of", args=[code]))
    if turned := request.POST.get("turned", "")[:MAX_QUERY]:
        view = View.of_query(turned)
        keep_own(appcode, view, user=user)
        return redirect(f"{back.partition('?')[0]}?{view.address}")
    chosen = None if "reset" in request.POST else View.read({"c": ["", *request.POST.getlist("c")]}).columns
    view = view.but(columns=chosen)
    keep_own(appcode, view, user=user)
    return redirect(f"{back.partition('?')[0]}?{view.address}")


@require_POST
def keep(request: HttpRequest, code: str) -> HttpResponse:
    """Keeps the view under `name`, with a `text` if one is sent; without a name, all members begin with it. `drop` deletes it."""
    user = person(request)
    appcode = appcode_for(user, code, OPERATE)
    view, is_named, is_dropped = _posted(request), "name" in request.POST, "drop" in request.POST
    name = request.POST["drop" if is_dropped else "name"].strip()[:MAX_QUERY] if is_named else ""
    try:
        if is_named and not name:
            raise Invalid.at("name", message="Give the view a name.")
        text = request.POST.get("text") if name else None
        keep_view(appcode, None if is_dropped else view, name=name, text=text, acting_user=user)
    except Invalid as invalid:
        messages.error(request, invalid.errors[0].message)
    else:
        if name:
            said = f"The view “{name}” is deleted." if is_dropped else f"Members of {code} find “{name}” below View."
        else:
            said = (
                f"{code} has no view of its own any more." if is_dropped else f"Members of {code} begin with this view."
            )
        messages.success(request, said)
    address = link_of(" ".join(name.split()), view.but().address) if name and not is_dropped else view.address
    return redirect(f"{reverse('results_of', args=[code])}?{address}")


@require_POST
def tag(request: HttpRequest, code: str) -> HttpResponse:
    """Adds the `tags`, divided by commas, to all `runs` (train/3)."""
    user = person(request)
    appcode = appcode_for(user, code, OPERATE)
    names = [name for name in request.POST.getlist("runs")[:ROWS] if RUN_NAME.fullmatch(name)]
    wanted = tags_in(request.POST.get("tags", "")[:MAX_QUERY])
    try:
        if not names or not wanted:
            raise Invalid.at("tags", message="Tick runs, and write a tag.")
        found = add_tags(appcode, names, wanted, acting_user=user)
    except Invalid as invalid:
        messages.error(request, invalid.errors[0].message)
    else:
        messages.success(request, f"{found} run{'' if found == 1 else 's'} tagged {', '.join(wanted)}.")
    return redirect(safe_next(request, reverse("results_of", args=[code])))


@require_http_methods(["GET", "HEAD", "POST"])
def notes(request: HttpRequest, appcode: str, name: str, run: int) -> HttpResponse:
    """Tags and note of a run, and the form that changes them: part of a menu in the table, or a page of its own."""
    user = person(request)
    found = run_for(user, appcode, name, run)
    back = safe_next(request, reverse("results_of", args=[appcode]))
    context = {
        "run": found,
        "appcode": found.cluster.appcode,
        "back": back,
        "tags": ", ".join(found.tags),
        "note": found.note,
    }
    if request.method == "POST":
        said = {"tags": request.POST.get("tags", "")[:MAX_QUERY], "note": request.POST.get("note", "")[:MAX_QUERY]}
        try:
            write_notes(found, tags_in(said["tags"]), said["note"], acting_user=user)
        except Invalid as invalid:
            if request.headers.get("HX-Request"):
                return _said("error", invalid.errors[0].message)
            context |= {**said, "wrong": {each.path[-1]: each.message for each in invalid.errors}}
        else:
            if request.headers.get("HX-Request"):
                return _said("success", f"{name}/{run} is noted.")
            messages.success(request, f"{name}/{run} is noted.")
            return redirect(back)
    context["may_operate"] = may(user, found.cluster.appcode, OPERATE)
    whole = not request.headers.get("HX-Request")
    return render(request, "clusters/results/notes.html" if whole else "clusters/results/_notes.html", context)


def _said(level: str, text: str) -> HttpResponse:
    """For htmx: a message, and after a change the table anew."""
    triggers: dict[str, object] = {"said": [[level, text]]}
    if level == "success":
        triggers["acted"] = True
    return HttpResponse(status=204, headers={"HX-Trigger": json.dumps(triggers)})


def _rows_of(kept: str) -> str:
    """A kept view without its look, which no request says."""
    return kept.partition("#")[0]


def _posted(request: HttpRequest) -> View:
    """The view in the field `query` of a form."""
    return View.of_query(request.POST.get("query", "")[:MAX_QUERY])
