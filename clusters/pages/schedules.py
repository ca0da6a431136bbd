"""Schedules: what is started when, and the form that shows the next times before it is saved."""

from __future__ import annotations

from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from clusters.models import Cluster, Pipeline, Schedule
from clusters.pages.raw_text import Words
from clusters.schedules import actions
from clusters.schedules.actions import schedule_for, schedules_for
from clusters.schedules.manifest import ScheduleManifest, ScheduleSpec
from portal.access import OPERATE, VIEW, appcode_for, appcodes_for, may, require_somewhere
from portal.errors import Invalid
from portal.manifests import parse
from portal.models import User
from portal.pages.appcodes import person
from portal.pages.forms import show_errors
from portal.pages.layout import matching, page_of, selected_appcode, words
from portal.zones import UTC, zones

FIELDS = {
    "metadata.name": "name", "metadata.appcode": "appcode", "spec.cron": "cron", "spec.timeZone": "time_zone",
    "spec.cluster": "starts", "spec.pipeline": "starts",
}  # fmt: skip
SHOWN = 5
# The newest ones; any other is named in a manifest.
MOST_OFFERED = 200
MISSED = (("skip", "Skip it"), ("once", "Start it once for all"))
OVERLAPPING = (("skip", "Skip this time"), ("queue", "Start when it is over"), ("cancel", "End it and start anew"))


class ScheduleForm(forms.Form):
    """`starts` is `APPCODE/cluster/NAME` or `APPCODE/pipeline/NAME`: what is chosen says where the schedule belongs."""

    use_required_attribute = False

    name = Words(
        label="Name",
        help_text="Lower-case letters, digits and “-”.",
        widget=forms.TextInput(attrs={"maxlength": 40, "autocomplete": "off", "autocapitalize": "none"}),
    )
    starts = Words(label="Starts", widget=forms.Select())
    cron = Words(
        label="When",
        help_text="Minute, hour, day of month, month, day of week: 30 2 * * MON-FRI is half past two on working days.",
        widget=forms.TextInput(
            attrs={"maxlength": 200, "class": "code", "autocomplete": "off", "placeholder": "30 2 * * *"}
        ),
    )
    time_zone = Words(label="Time zone", widget=forms.Select())
    missed = Words(label="When the portal was down at that time", widget=forms.Select(choices=MISSED))
    overlapping = Words(label="While the run before goes on", widget=forms.Select(choices=OVERLAPPING))

    def __init__(self, user: User, *args: Any, appcode: str = "", fixed: bool = False, **options: Any) -> None:
        super().__init__(*args, **options)
        usual = {"time_zone": user.time_zone or UTC, "missed": "skip", "overlapping": "skip"}
        self.initial = {**usual, **self.initial}
        self._choices("time_zone", [(name, name.replace("_", " ")) for name in zones()])
        self._choices("starts", [("", "Choose…"), *_offered(user, appcode, self.initial.get("starts", ""))])
        self.fields["name"].disabled = fixed

    def _choices(self, name: str, choices: list[Any]) -> None:
        widget = self.fields[name].widget
        assert isinstance(widget, forms.Select)
        widget.choices = choices

    def manifest(self) -> ScheduleManifest:
        """Raises Invalid. To be called on a bound form."""
        if not self.is_valid():
            raise Invalid([])
        said = self.cleaned_data
        code, _, what = said["starts"].partition("/")
        kind, _, target = what.partition("/")
        if kind not in ("cluster", "pipeline"):
            raise Invalid.at("spec", "cluster", message="Choose what is started.")
        spec = {"timeZone": said["time_zone"], kind: target}
        spec |= {name: said[name] for name in ("cron", "missed", "overlapping")}
        return parse(ScheduleManifest, {"metadata": {"name": said["name"], "appcode": code}, "spec": spec})


def _offered(user: User, appcode: str, chosen: str) -> list[Any]:
    """Pipelines and clusters that one may start, of one appcode or all, by kind; what is chosen is among them."""
    appcodes = appcodes_for(user, OPERATE).filter(**({"code": appcode} if appcode else {})).order_by().values("pk")
    pipelines = Pipeline.objects.filter(appcode__in=appcodes)
    clusters = Cluster.objects.filter(appcode__in=appcodes, deleted_at=None, part_of="")
    found = []
    for kind, title, rows in (("pipeline", "Pipelines", pipelines), ("cluster", "Clusters", clusters)):
        names = rows.order_by("-pk").values_list("appcode__code", "name")[:MOST_OFFERED]
        keys = {f"{code}/{kind}/{name}": f"{code}/{name}" for code, name in names}
        code, _, rest = chosen.partition("/")
        if rest.startswith(f"{kind}/"):
            keys.setdefault(chosen, f"{code}/{rest.partition('/')[2]}")
        found.append((title, list(keys.items())))
    return found


@require_safe
def schedules(request: HttpRequest) -> HttpResponse:
    user, code = person(request), selected_appcode(request)
    rows = schedules_for(user)
    rows = matching(rows.filter(appcode__code=code) if code else rows, words(request), "name")
    found, following = page_of(request, rows, "-id")
    said = [(row, ScheduleSpec.model_validate(row.spec)) for row in found]
    context = {"rows": said, "next_cursor": following, "searched": words(request)}
    return render(request, "clusters/schedules.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def new_schedule(request: HttpRequest) -> HttpResponse:
    user = person(request)
    require_somewhere(user, OPERATE)
    code = selected_appcode(request)
    if request.method == "POST":
        return _sent(request, ScheduleForm(user, request.POST, appcode=code), None)
    initial = {"starts": words(request, "starts")}
    return _page(request, ScheduleForm(user, initial=initial, appcode=code), None)


@require_http_methods(["GET", "HEAD", "POST"])
def schedule(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """What it is, and by POST what it becomes."""
    user = person(request)
    found = schedule_for(user, appcode, name, OPERATE if request.method == "POST" else VIEW)
    spec = ScheduleSpec.model_validate(found.spec)
    kind = "pipeline" if spec.pipeline else "cluster"
    initial = {
        "name": name, "starts": f"{appcode}/{kind}/{spec.pipeline or spec.cluster}", "cron": spec.cron,
        "time_zone": spec.time_zone, "missed": spec.missed, "overlapping": spec.overlapping,
    }  # fmt: skip
    if request.method == "POST":
        return _sent(request, ScheduleForm(user, request.POST, initial=initial, appcode=appcode, fixed=True), found)
    return _page(request, ScheduleForm(user, initial=initial, appcode=appcode, fixed=True), found)


@require_POST
def times(request: HttpRequest) -> HttpResponse:
    """The next times of what is typed so far, or what is wrong with it."""
    said = {"cron": request.POST.get("cron", ""), "time_zone": request.POST.get("time_zone", ""), "cluster": "any"}
    return render(request, "clusters/_times.html", _times(said))


@require_POST
def pause(request: HttpRequest, appcode: str, name: str, *, paused: bool) -> HttpResponse:
    found = schedule_for(person(request), appcode, name, OPERATE)
    actions.pause_schedule(found, acting_user=person(request), paused=paused)
    return redirect("schedules")


@require_POST
def delete(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    found = schedule_for(person(request), appcode, name, OPERATE)
    actions.delete_schedule(found, acting_user=person(request))
    messages.success(request, f"The schedule {name} is deleted.")
    return redirect("schedules")


def _times(said: dict[str, Any]) -> dict[str, Any]:
    if not said["cron"].strip():
        return {}
    try:
        spec = parse(ScheduleSpec, said)
    except Invalid as invalid:
        return {"wrong": " ".join(error.message for error in invalid.errors)}
    coming = islice(spec.times(timezone.now()), SHOWN)
    zone = ZoneInfo(spec.time_zone)
    return {"spec": spec, "times": [f"{at.astimezone(zone):%a %Y-%m-%d %H:%M %Z}" for at in coming]}


def _sent(request: HttpRequest, form: ScheduleForm, found: Schedule | None) -> HttpResponse:
    user = person(request)
    try:
        manifest = form.manifest()
        code = manifest.metadata.appcode
        if found is None:
            saved = actions.create_schedule(manifest, appcode_for(user, code, OPERATE), acting_user=user)
        elif code != found.appcode.code:
            raise Invalid.at(
                "spec", "cluster", message=f"It belongs to {found.appcode.code}; choose something of that."
            )
        else:
            paused = bool(found.spec.get("paused"))
            kept = manifest.model_copy(update={"spec": manifest.spec.model_copy(update={"paused": paused})})
            saved = actions.change_schedule(found, kept, acting_user=user)
        messages.success(request, f"{saved.name} is saved.")
        return redirect("schedules")
    except Invalid as invalid:
        show_errors(form, invalid, FIELDS)
    return _page(request, form, found)


def _page(request: HttpRequest, form: ScheduleForm, found: Schedule | None) -> HttpResponse:
    said = {"cron": form["cron"].value() or "", "time_zone": form["time_zone"].value() or "", "cluster": "any"}
    may_change = found is None or may(person(request), found.appcode, OPERATE)
    context = {"form": form, "schedule": found, "may_change": may_change, **_times(said)}
    return render(request, "clusters/schedule.html", context)
