"""Schedules: the list, and the form, which previews the next start times."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from clusters.frame.form import ManifestForm, choice
from clusters.frame.raw_text import Words
from clusters.pipelines.models import Pipeline
from clusters.runs.models import Cluster
from clusters.schedules import actions
from clusters.schedules.actions import schedule_for, schedules_for
from clusters.schedules.manifest import ScheduleManifest, ScheduleSpec
from clusters.schedules.models import Schedule
from portal.access import OPERATE, VIEW, appcode_for, appcodes_for, may, require_somewhere
from portal.errors import FieldError, Invalid, sentence
from portal.manifests import parse
from portal.models import User
from portal.pages.appcodes import person
from portal.pages.forms import ZoneInput
from portal.pages.layout import listed, page_of, selected_appcode, words
from portal.text.zones import UTC, zone_named

FIELDS = {
    "metadata.name": "name", "metadata.appcode": "appcode", "spec.cron": "cron", "spec.timeZone": "time_zone",
    "spec.cluster": "starts", "spec.pipeline": "starts",
}  # fmt: skip
SHOWN = 5
# Only the newest are offered; a manifest can name any.
MOST_OFFERED = 200
MISSED = (("skip", "Skip it"), ("once", "Start it once for all"))
OVERLAPPING = (("skip", "Skip this time"), ("queue", "Start when it is over"), ("cancel", "End it and start anew"))


class ScheduleForm(ManifestForm[ScheduleManifest]):
    """`starts` is `APPCODE/cluster/NAME` or `APPCODE/pipeline/NAME`; it also determines the schedule's appcode."""

    manifest_class = ScheduleManifest
    paths = FIELDS

    name = Words(
        label="Name",
        help_text="Lower-case letters, digits and “-”.",
        widget=forms.TextInput(attrs={"maxlength": 40, "autocomplete": "off", "autocapitalize": "none"}),
    )
    starts = choice("Starts")
    cron = Words(
        label="When",
        help_text="Minute, hour, day of month, month, day of week: 30 2 * * MON-FRI is half past two on working days.",
        widget=forms.TextInput(
            attrs={"maxlength": 200, "class": "code", "autocomplete": "off", "placeholder": "30 2 * * *"}
        ),
    )
    time_zone = Words(label="Time zone", widget=ZoneInput())
    missed = choice("When the portal was down at that time", choices=MISSED)
    overlapping = choice("While the run before goes on", choices=OVERLAPPING)

    def __init__(self, user: User, *args: Any, appcode: str = "", fixed: bool = False, **options: Any) -> None:
        super().__init__(*args, **options)
        usual = {"time_zone": user.time_zone or UTC, "missed": "skip", "overlapping": "skip"}
        self.initial = {**usual, **self.initial}
        if not (self.is_bound or fixed or user.time_zone):
            # Without a zone of the profile, the browser's is chosen.
            self.fields["time_zone"].widget.attrs["data-zone-preset"] = ""
        self.choose("starts", [("", "Choose…"), *_offered(user, appcode, self.initial.get("starts", ""))])
        self.fields["name"].disabled = fixed

    def document(self, said: Mapping[str, str]) -> tuple[dict[str, Any], list[FieldError]]:
        code, _, what = said["starts"].partition("/")
        kind, _, target = what.partition("/")
        if kind not in ("cluster", "pipeline"):
            raise Invalid.at("spec", "cluster", message="Choose what is started.")
        spec = {"timeZone": said["time_zone"], kind: target}
        spec |= {name: said[name] for name in ("cron", "missed", "overlapping")}
        return {"metadata": {"name": said["name"], "appcode": code}, "spec": spec}, []


def fields_of(name: str, appcode: str, spec: ScheduleSpec) -> dict[str, str]:
    """The inverse of `ScheduleForm.document`."""
    kind = "pipeline" if spec.pipeline else "cluster"
    return {
        "name": name, "starts": f"{appcode}/{kind}/{spec.pipeline or spec.cluster}", "cron": spec.cron,
        "time_zone": spec.time_zone, "missed": spec.missed, "overlapping": spec.overlapping,
    }  # fmt: skip


def _offered(user: User, appcode: str, chosen: str) -> list[Any]:
    """Pipelines and clusters that the user may start, in one appcode or all, by kind; always includes the chosen one."""
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
    found, following = page_of(request, listed(request, schedules_for(person(request)), "name"), "-id")
    said = [(row, ScheduleSpec.stored(row.spec)) for row in found]
    context = {"rows": said, "next_cursor": following, "searched": words(request)}
    return render(request, "clusters/schedules/schedules.html", context)


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
    user = person(request)
    found = schedule_for(user, appcode, name, OPERATE if request.method == "POST" else VIEW)
    initial = fields_of(name, appcode, ScheduleSpec.stored(found.spec))
    if request.method == "POST":
        return _sent(request, ScheduleForm(user, request.POST, initial=initial, appcode=appcode, fixed=True), found)
    return _page(request, ScheduleForm(user, initial=initial, appcode=appcode, fixed=True), found)


@require_POST
def times(request: HttpRequest) -> HttpResponse:
    """The next start times for the current input, or its errors."""
    said = {
        "cron": request.POST.get("cron", ""),
        "time_zone": zone_named(request.POST.get("time_zone", "")),
        "cluster": "any",
    }
    return render(request, "clusters/schedules/_times.html", _times(said))


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
        return {"wrong": sentence(invalid)}
    coming = islice(spec.times(timezone.now()), SHOWN)
    zone = ZoneInfo(spec.time_zone)
    return {"spec": spec, "times": [f"{at.astimezone(zone):%a %Y-%m-%d %H:%M %Z}" for at in coming]}


def _sent(request: HttpRequest, form: ScheduleForm, found: Schedule | None) -> HttpResponse:
    user = person(request)

    def save(manifest: ScheduleManifest) -> Schedule:
        code = manifest.metadata.appcode
        if found is None:
            return actions.create_schedule(manifest, appcode_for(user, code, OPERATE), acting_user=user)
        if code != found.appcode.code:
            raise Invalid.at(
                "spec", "cluster", message=f"It belongs to {found.appcode.code}; choose something of that."
            )
        paused = bool(found.spec.get("paused"))
        kept = manifest.model_copy(update={"spec": manifest.spec.model_copy(update={"paused": paused})})
        return actions.change_schedule(found, kept, acting_user=user)

    saved = form.attempt(save, show_denied=False)
    if saved is None:
        return _page(request, form, found)
    messages.success(request, f"{saved.name} is saved.")
    return redirect("schedules")


def _page(request: HttpRequest, form: ScheduleForm, found: Schedule | None) -> HttpResponse:
    said = {"cron": form["cron"].value() or "", "time_zone": form["time_zone"].value() or "", "cluster": "any"}
    may_change = found is None or may(person(request), found.appcode, OPERATE)
    context = {"form": form, "schedule": found, "may_change": may_change, **_times(said)}
    return render(request, "clusters/schedules/schedule.html", context)
