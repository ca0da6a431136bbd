"""The page of a cloud's maintenance windows and reservations. Before anything is saved it shows whose runs will be given back."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST

from clusters.cloud_admin import windows as actions
from clusters.cloud_admin.windows import WindowSpec
from clusters.clouds.models import Cloud, Window
from clusters.clouds.registry import places_runs
from clusters.runs.models import Run
from clusters.runs.placing.closing import told
from clusters.runs.placing.windows import open_at
from portal.access import require_administrator
from portal.errors import Conflict, Invalid
from portal.manifests import parse
from portal.pages.appcodes import attempt, person
from portal.pages.forms import Words, show_errors
from portal.text.zones import zone_of

MOMENT = {"type": "datetime-local", "step": 60}


@dataclass(frozen=True)
class Affected:
    """A run that will be given back. `to`: who is told; empty for the notification addresses of its appcode."""

    run: Run
    to: Sequence[str]


class WindowForm(forms.Form):
    """A `WindowSpec` as a form. Times are in the zone that the browser names."""

    use_required_attribute = False
    PATHS: ClassVar = {
        "nodes": "nodes", "startsAt": "starts_at", "endsAt": "ends_at", "appcode": "appcode", "reason": "reason",
        "repeat": "repeat",
    }  # fmt: skip

    nodes = forms.MultipleChoiceField(label="Nodes", required=False, widget=forms.CheckboxSelectMultiple)
    starts_at = Words(
        label="From (UTC)", required=False, help_text="Empty: now.", widget=forms.DateTimeInput(attrs=MOMENT)
    )
    ends_at = Words(label="To (UTC)", widget=forms.DateTimeInput(attrs=MOMENT))
    starts_zone = Words(initial="UTC", required=False, widget=forms.HiddenInput(attrs={"data-zone-of": "id_starts_at"}))
    ends_zone = Words(initial="UTC", required=False, widget=forms.HiddenInput(attrs={"data-zone-of": "id_ends_at"}))
    reason = Words(label="Reason", help_text="Everybody reads it whose runs are affected.")
    repeat = forms.ChoiceField(
        label="Repeat",
        required=False,
        choices=[(name or "never", label.capitalize()) for name, label in Window.Repeat.choices],
        help_text="At the same time by UTC, until you cancel the next one.",
    )
    appcode = Words(
        label="Reserved for",
        required=False,
        help_text="The code of the only appcode whose runs may start there meanwhile. Empty: maintenance, for nobody's.",
        widget=forms.TextInput(attrs={"spellcheck": "false", "autocapitalize": "none", "autocomplete": "off"}),
    )

    def __init__(self, *args: Any, nodes: Sequence[str], **options: Any) -> None:
        super().__init__(*args, **options)
        self.fields["nodes"].choices = [(name, name) for name in nodes]  # type: ignore[attr-defined]

    def spec(self) -> WindowSpec:
        """What a bound form says. Raises Invalid."""
        if not self.is_valid():
            raise Invalid([])
        typed = self.cleaned_data
        return parse(WindowSpec, {
            "nodes": typed["nodes"],
            "startsAt": _moment(typed["starts_at"], typed["starts_zone"]),
            "endsAt": _moment(typed["ends_at"], typed["ends_zone"]),
            "reason": typed["reason"].strip(),
            "appcode": typed["appcode"].strip() or None,
            "repeat": typed["repeat"] or "never",
        })  # fmt: skip

    @staticmethod
    def filled(row: Window) -> dict[str, Any]:
        return {
            "nodes": row.nodes, "starts_at": _shown(row.starts_at), "ends_at": _shown(row.ends_at), "reason": row.reason,
            "appcode": row.appcode.code if row.appcode else "", "starts_zone": "UTC", "ends_zone": "UTC",
            "repeat": row.repeat or "never",
        }  # fmt: skip


@require_http_methods(["GET", "HEAD", "POST"])
def windows(request: HttpRequest, name: str, pk: int | None = None) -> HttpResponse:
    """The list, and the form of a new window, or of the one with that id."""
    user = person(request)
    require_administrator(user)
    cloud = _cloud(name)
    window = _window(cloud, pk) if pk else None
    typed = request.POST if request.method == "POST" else None
    nodes = sorted(actions.node_names(cloud) | set(window.nodes if window else ()), key=lambda each: (len(each), each))
    form = WindowForm(typed, nodes=nodes, initial=WindowForm.filled(window) if window else None)
    found: list[Affected] | None = None
    if request.method == "POST":
        try:
            spec = form.spec()
            if "save" in request.POST:
                if window:
                    actions.change(window, spec, acting_user=user)
                else:
                    actions.open_window(cloud, spec, acting_user=user)
                messages.success(request, "Saved. Those whose runs will be given back are told.")
                return redirect("admin_windows", name=cloud.name)
            copy = _window(cloud, pk) if pk else None
            found = [Affected(run, told(run)) for run in actions.affected(cloud, spec, copy)]
        except Invalid as invalid:
            show_errors(form, invalid, WindowForm.PATHS)
        except Conflict as conflict:
            form.add_error(None, str(conflict))
    context = {
        "cloud": cloud,
        "windows": _rows(cloud),
        "window": window,
        "form": form,
        "affected": found,
        "gpus": sum(each.run.gpus for each in found or ()),
        "can_close": places_runs(cloud.name),
        "now": timezone.now(),
    }
    return render(request, "clusters/cloud_admin/windows.html", context)


@require_POST
def cancel(request: HttpRequest, name: str, pk: int) -> HttpResponse:
    user = person(request)
    require_administrator(user)
    window = _window(_cloud(name), pk)
    attempt(request, lambda: actions.cancel(window, acting_user=user), "Cancelled. Its nodes are open.")
    return redirect("admin_windows", name=name)


def _cloud(name: str) -> Cloud:
    row = Cloud.objects.filter(name=name).first()
    if row is None:
        raise Http404(f"There is no cloud “{name}”.")
    return row


def _rows(cloud: Cloud) -> list[Window]:
    return list(open_at(timezone.now()).filter(cloud=cloud).select_related("appcode", "created_by"))


def _window(cloud: Cloud, pk: int) -> Window:
    row = open_at(timezone.now()).filter(cloud=cloud, pk=pk).select_related("cloud", "appcode").first()
    if row is None:
        raise Http404("There is no such window, or it has ended.")
    return row


def _moment(text: str, zone: str) -> str | None:
    """A time without a zone is in `zone`. What is no time is refused where it is parsed."""
    try:
        at = dt.datetime.fromisoformat(text.strip())
        return (at if at.tzinfo else at.replace(tzinfo=zone_of(zone))).isoformat()
    except ValueError:
        return text.strip() or None


def _shown(at: dt.datetime) -> str:
    return at.astimezone(dt.UTC).replace(tzinfo=None, microsecond=0).isoformat()
