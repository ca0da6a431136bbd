"""Administrators' pages of clouds: this machine, registered clouds, and the placement of business lines."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args, get_origin

from django import forms
from django.contrib import messages
from django.db.models import Count, Sum
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe
from pydantic.fields import FieldInfo

from billing.models import Measuring
from clusters.cloud_admin import actions, decommission
from clusters.cloud_admin.manifest import KubernetesManifest, read_manifest
from clusters.clouds import credentials, kinds, registry
from clusters.clouds.drivers.base import Inspected
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.kubernetes.settings import Settings
from clusters.clouds.drivers.kubernetes.watch import capacity
from clusters.clouds.health import silence
from clusters.clouds.models import Cloud, CloudState
from clusters.cluster.pages.machines import Machines, machines
from clusters.runs.models import Run
from clusters.runs.placing.tiles import Tile
from clusters.runs.queries.queue import reported_tiles
from datastores.models import Volume
from portal.access import require_administrator
from portal.errors import Conflict, Invalid
from portal.lending import promised
from portal.models import Appcode, OrgNode
from portal.pages.appcodes import attempt, person
from portal.pages.forms import Words, show_errors

SETTING = "setting_"
FIELDS: Mapping[str, FieldInfo] = Settings.__pydantic_fields__  # type: ignore[attr-defined]
CODE = {"spellcheck": "false", "autocapitalize": "none", "autocomplete": "off"}


@dataclass(frozen=True)
class Health:
    """How a cloud is, in words and as the shape of a state, and why in sentences, if something has to be done about it."""

    shape: str
    words: str
    why: tuple[str, ...] = ()

    @property
    def is_bad(self) -> bool:
        return self.shape == "failed"


@dataclass(frozen=True)
class Shown:
    """A cloud of the list."""

    row: Cloud
    state: CloudState | None
    measuring: Measuring | None
    is_default: bool
    runs: int
    lines: list[str]
    volumes: int
    machines: Machines

    @property
    def is_own(self) -> bool:
        """Whether the cloud is part of the portal, not registered."""
        return self.row.kind in kinds.OWN

    @property
    def has_form(self) -> bool:
        return self.row.kind == KubernetesCloud.kind

    @property
    def can_be_tested(self) -> bool:
        return issubclass(kinds.DRIVERS[self.row.kind], Inspected)

    @property
    def to_know(self) -> list[str]:
        """What its machines, and what is known of them, lack; how busy GPUs are stands elsewhere."""
        said = {} if self.is_own or self.state is None else self.state.unmeasured
        unmeasured = (sentence for name, sentence in said.items() if name != "gpu")
        lacks = kinds.lacks(kinds.DRIVERS[self.row.kind])
        return [*([lacks] if lacks else ()), *(self.state.notes if self.state else ()), *unmeasured]

    @property
    def nodes(self) -> list[dict[str, Any]]:
        return self.state.capacity.get("nodes", []) if self.state else []

    @property
    def credentials_end(self) -> dt.datetime | None:
        return credentials.ends_at(self.row)

    @property
    def ends_soon(self) -> bool:
        end = self.credentials_end
        return end is not None and credentials.mark(end, timezone.now()) is not None

    @property
    def silent(self) -> list[dict[str, Any]]:
        """Its unreachable nodes, with the command that a cluster administrator runs for each."""
        return [
            {
                "name": node["name"],
                "gpus": node["gpus"],
                "heard_at": None if since == "?" else dt.datetime.fromisoformat(since),
                "command": capacity.give_up(node["name"]),
            }
            for node in self.nodes
            if (since := node.get("silent_since"))
        ]

    @property
    def may_give_up_nodes(self) -> bool:
        """According to the last connection test."""
        return "patch nodes" not in self.row.test.get("missing_optional", ["patch nodes"])

    @property
    def gpus(self) -> int:
        return sum(node["gpus"] for node in self.nodes)

    @property
    def gpus_free(self) -> int:
        return sum(node["gpus_free"] for node in self.nodes if node.get("takes_tasks", True))

    @property
    def may_be_lost(self) -> bool:
        """Whether to offer giving it up; the action checks again."""
        heard_at = self.state.heard_at if self.state else None
        if self.is_own or not decommission.is_silent(heard_at):
            return False
        return bool(self.runs or self.volumes) or (heard_at is not None and self.row.given_up_at is None)

    @property
    def closed_nodes(self) -> int:
        """Number of nodes that answer and take no tasks."""
        return sum(1 for node in self.nodes if not node.get("takes_tasks", True) and not node.get("silent_since"))

    @property
    def health(self) -> Health:
        """The worst first."""
        heard_at = self.state.heard_at if self.state else None
        trouble = self.state.trouble if self.state else ""
        silent = silence(self.state, self.row.title, timezone.now())
        if self.row.given_up_at:
            return Health("stopped", "Given up")
        if silent or trouble:
            return Health("failed", "Does not answer", tuple(each for each in (silent, trouble) if each))
        if self.row.tested_at and not self.row.test.get("ok"):
            return Health("failed", "Test failed", (str(self.row.test.get("message", "")),))
        if heard_at is None:
            return Health("queued", "Not heard yet")
        if self.ends_soon and (end := self.credentials_end):
            why = f"They end at {end.astimezone(dt.UTC):%Y-%m-%d %H:%M} UTC; after that nothing can be started or stopped there."
            return Health("starting", "Credentials end soon", (why,))
        if count := len(self.silent):
            return Health("starting", f"{count} silent node{'' if count == 1 else 's'}")
        if not self.row.enabled:
            return Health("stopped", "Takes no new runs")
        if self.gpus and not self.gpus_free:
            return Health("running", "Full")
        return Health("succeeded", "Ready")


class KubernetesForm(forms.Form):
    """The manifest of a Kubernetes cluster as a form. The settings fields are generated from `Settings`."""

    use_required_attribute = False
    PATHS: ClassVar = {
        "metadata.name": "name",
        **{f"spec.{name}": name for name in ("title", "kubeconfig", "context", "insecure", "enabled", "default")},
        "spec.inCluster": "how",
        "spec.prometheusToken": "prometheus_token",
        **{f"spec.settings.{name}": f"{SETTING}{name}" for name in FIELDS},
    }

    name = Words(
        label="Name",
        help_text="What runs and manifests keep, e.g. <code>training</code>. It cannot be changed later.",
        widget=forms.TextInput(attrs=CODE),
    )
    title = Words(label="Title", required=False, help_text="As people call it. Default: the name.")
    how = forms.ChoiceField(
        label="Reached by",
        choices=[("kubeconfig", "a kubeconfig"), ("in-cluster", "the service account of the portal's own pod")],
        initial="kubeconfig",
    )
    kubeconfig = Words(
        label="Kubeconfig",
        required=False,
        help_text="Everything has to be in it: no files, and no programs to sign in. It is encrypted and never shown again.",
        widget=forms.Textarea(attrs={"rows": 8, "class": "code", **CODE}),
    )
    context = Words(label="Context", required=False, help_text="Default: the current one of the kubeconfig.")
    insecure = forms.BooleanField(
        label="Insecure",
        required=False,
        help_text="Let a kubeconfig pass that does not check the server's certificate. Only for trying out.",
    )
    enabled = forms.BooleanField(
        label="Takes new runs", required=False, initial=True, help_text="Existing runs continue."
    )
    default = forms.BooleanField(
        label="Default", required=False, help_text="Used by business lines without a cloud of their own."
    )

    prometheus_token = Words(
        label="Token of Prometheus",
        required=False,
        help_text="A bearer token, where it asks for one. It is encrypted and never shown again.",
        widget=forms.PasswordInput(attrs={"class": "code", **CODE, "autocomplete": "new-password"}),
    )

    def __init__(self, *args: Any, row: Cloud | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        for name, info in FIELDS.items():
            self.fields[f"{SETTING}{name}"] = _field(info)
        self.row = row
        given = self.fields["kubeconfig"]
        given.required = self["how"].value() != "in-cluster" and not (row and row.credentials)
        if row is None or not row.credentials:
            given.help_text += " Not needed with the service account of the portal's own pod."
        else:
            given.help_text = "Empty keeps the one that is stored."
        if row is not None:
            self.fields["name"].disabled = True
            if row.prometheus_token:
                self.fields[
                    "prometheus_token"
                ].help_text = "Empty keeps the one that is stored; it is forgotten when the address changes."

    @property
    def settings_fields(self) -> list[forms.BoundField]:
        return [*(self[f"{SETTING}{name}"] for name in FIELDS), self["prometheus_token"]]

    @property
    def settings_open(self) -> bool:
        """Whether a folded setting was changed or has an error."""
        plain = Settings()
        return any(
            (name == "prometheus_token" and name in self.errors)
            or (
                name.startswith(SETTING)
                and (name in self.errors or self[name].value() != _write(getattr(plain, name[len(SETTING) :])))
            )
            for name in self.fields
        )

    def manifest(self) -> KubernetesManifest:
        """The manifest of a bound form. Raises Invalid."""
        if not self.is_valid():
            raise Invalid([])
        typed = self.cleaned_data
        spec: dict[str, Any] = {name: typed[name] for name in ("title", "context", "insecure", "enabled", "default")}
        spec["settings"] = {name: _read(info, typed[f"{SETTING}{name}"]) for name, info in FIELDS.items()}
        if typed["how"] == "in-cluster":
            spec["inCluster"] = True
        elif self.row and self.row.credentials is None and not typed["kubeconfig"].strip():
            raise Invalid.at("spec", "kubeconfig", message="Give a kubeconfig.")
        if typed["prometheus_token"].strip():
            spec["prometheusToken"] = typed["prometheus_token"].strip()
        if typed["kubeconfig"].strip():
            spec["kubeconfig"] = typed["kubeconfig"]
        return read_manifest({"metadata": {"name": typed["name"].strip()}, "spec": spec})

    @staticmethod
    def filled(row: Cloud) -> dict[str, Any]:
        stored = Settings.readable(row.settings)
        return {
            "name": row.name,
            "title": row.title,
            "how": "kubeconfig" if row.credentials else "in-cluster",
            "enabled": row.enabled,
            "default": row.is_default,
            **{f"{SETTING}{name}": _write(getattr(stored, name)) for name in FIELDS},
        }


@dataclass(frozen=True)
class Line:
    """A row of the form of business lines. `was` is the cloud that it is placed on, "" for the default, `chosen` what the form
    says, and `choices` are clouds that take new runs, and the present one."""

    path: str
    namespace: str
    was: str
    chosen: str
    choices: list[tuple[str, str]]
    error: str


@require_safe
def clouds(request: HttpRequest) -> HttpResponse:
    require_administrator(person(request))
    return _clouds(request, {}, {})


def _without_notes(tiles: Iterable[Tile], state: CloudState | None) -> list[Tile]:
    """The tiles without what the page says of the whole cloud, which has no room in the box of a node."""
    notes = state.notes if state else []
    return [replace(tile, note="") if tile.note in notes else tile for tile in tiles]


def _clouds(request: HttpRequest, chosen: Mapping[str, str], errors: Mapping[str, str]) -> HttpResponse:
    """The page, with what the form of business lines said and what was wrong with it, by path."""
    rows = list(registry.rows().prefetch_related("placements__org_node"))
    # This machine first.
    rows.sort(key=lambda row: row.kind not in kinds.OWN)
    states = {state.name: state for state in CloudState.objects.all()}
    measuring = {each.cloud: each for each in Measuring.objects.all()}
    living = dict(Run.objects.filter(gone=False).order_by().values_list("cloud").annotate(Count("pk")))
    volumes = dict(Volume.objects.order_by().values_list("cloud").annotate(Count("pk")))
    default = next((row for row in rows if row.is_default), next((row for row in rows if row.kind in kinds.OWN), None))
    tiles = reported_tiles(states.values())
    shown = [
        Shown(
            row,
            states.get(row.name),
            measuring.get(row.name),
            row is default,
            living.get(row.name, 0),
            sorted(each.org_node.path for each in row.placements.all()),
            volumes.get(row.name, 0),
            machines(_without_notes(tiles.get(row.name, ()), states.get(row.name)), {}, sees_all=True),
        )
        for row in rows
    ]
    lines = []
    for line in OrgNode.objects.filter(namespace__isnull=False).select_related("placement__cloud"):
        was = _place(line)
        choices = [(row.name, row.title) for row in rows if row.enabled or row.name == was]
        wanted = chosen.get(line.path, was)
        lines.append(Line(line.path, line.namespace or "", was, wanted, choices, errors.get(line.path, "")))
    # What needs somebody comes first.
    shown.sort(key=lambda cloud: (not cloud.health.is_bad, not cloud.health.why))
    pool = sum(cloud.gpus for cloud in shown)
    quotas = Appcode.objects.filter(state=Appcode.State.ACTIVE).aggregate(sum=Sum("gpu_quota"))["sum"] or 0
    context = {
        "clouds": shown,
        "bad": sum(cloud.health.is_bad for cloud in shown),
        "gpus": pool,
        # Those that a new run may get.
        "gpus_free": sum(cloud.gpus_free for cloud in shown if cloud.row.enabled and not cloud.health.is_bad),
        "runs": sum(cloud.runs for cloud in shown),
        "lines": lines,
        # With one cloud there is nothing to choose.
        "can_place": sum(row.enabled for row in rows) > 1 or any(line.was or line.error for line in lines),
        "silent": [cloud for cloud in shown if cloud.silent],
        "default_title": default.title if default else "nowhere",
        "promised": pool and promised(quotas, pool),
    }
    return render(request, "clusters/cloud_admin/clouds.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def cloud(request: HttpRequest, name: str | None = None) -> HttpResponse:
    """The form of a new or registered cluster. Saving tests the connection at once."""
    user = person(request)
    require_administrator(user)
    row = _row(name) if name else None
    if row and row.kind != KubernetesCloud.kind:
        raise Http404(f"“{name}” is no Kubernetes cluster.")
    initial = KubernetesForm.filled(row) if row else {"default": not registry.registered().exists()}
    initial = {f"{SETTING}{key}": _write(value) for key, value in vars(Settings()).items() if key in FIELDS} | initial
    form = KubernetesForm(request.POST if request.method == "POST" else None, initial=initial, row=row)
    if request.method == "POST":
        try:
            manifest = form.manifest()
            changed = (
                actions.change(row, manifest, acting_user=user) if row else actions.register(manifest, acting_user=user)
            )
        except Invalid as invalid:
            show_errors(form, invalid, KubernetesForm.PATHS)
        except Conflict as conflict:
            form.add_error(None, str(conflict))
        else:
            report = actions.try_connection(changed)
            say = messages.success if report.ok else messages.warning
            say(request, f"{changed.title} is saved. {report.message}")
            return redirect("admin_clouds")
    end = credentials.ends_at(row) if row else None
    return render(request, "clusters/cloud_admin/cloud.html", {"form": form, "row": row, "credentials_end": end})


@require_POST
def test(request: HttpRequest, name: str) -> HttpResponse:
    require_administrator(person(request))
    row = _row(name)
    report = actions.try_connection(row)
    (messages.success if report.ok else messages.error)(request, f"{row.title}: {report.message}")
    return redirect("admin_clouds")


@require_POST
def act(request: HttpRequest, name: str, verb: str) -> HttpResponse:
    user = person(request)
    require_administrator(user)
    if name in registry.own_kinds() and verb == "default":
        for row in Cloud.objects.filter(is_default=True):
            _attempt_change(request, row, f"{kinds.DRIVERS[name].title.capitalize()} is the default.", default=False)
        return redirect("admin_clouds")
    row = _row(name)
    if verb == "remove":
        attempt(request, lambda: actions.remove(row, acting_user=user), f"{row.title} is removed.")
    elif verb == "default":
        _attempt_change(request, row, f"{row.title} is the default.", default=True, enabled=True)
    elif verb == "enable":
        _attempt_change(request, row, f"{row.title} takes new runs.", enabled=True)
    else:
        done = f"{row.title} takes no new runs; those that live there go on."
        _attempt_change(request, row, done, enabled=False)
    return redirect("admin_clouds")


@require_http_methods(["GET", "HEAD", "POST"])
def give_up(request: HttpRequest, name: str) -> HttpResponse:
    """Shows what will be lost, and asks for the cloud's name as confirmation."""
    user = person(request)
    require_administrator(user)
    row = _row(name)
    if request.method != "POST" or request.POST.get("name", "").strip() != row.name:
        asked = {
            "row": row,
            "loss": decommission.loss_of(row),
            "why_not": decommission.why_not(row),
            "wrong": f"Type “{row.name}”." if request.method == "POST" else "",
        }
        return render(request, "clusters/cloud_admin/give_up.html", asked)
    done = f"{row.title} is given up. Place its business lines elsewhere, and remove it when you are sure."
    attempt(request, lambda: decommission.give_up(row, acting_user=user), done)
    return redirect("admin_clouds")


@require_POST
def give_up_node(request: HttpRequest, name: str, node: str) -> HttpResponse:
    user = person(request)
    require_administrator(user)
    row = _row(name)
    done = f"{node} is given up; its tasks start elsewhere within half a minute."
    attempt(request, lambda: actions.give_up_node(row, node, acting_user=user), done)
    return redirect("admin_clouds")


@require_POST
def place(request: HttpRequest) -> HttpResponse:
    """The form of business lines: a `line` and its `cloud` each, and what the page said that it `was`. Moves all that changed,
    or none."""
    user = person(request)
    require_administrator(user)
    paths, names, before = (request.POST.getlist(field) for field in ("line", "cloud", "was"))
    chosen = {path: name.replace("\0", "")[:40] for path, name in zip(paths, names, strict=False)}
    was = dict(zip(paths, before, strict=False))
    lines = {line.path: line for line in OrgNode.objects.filter(namespace__isnull=False)}
    if not chosen.keys() <= lines.keys():
        raise Http404("There is no such business line.")
    changed = {lines[path]: name or None for path, name in chosen.items() if name != was.get(path)}
    try:
        actions.place_all(changed, acting_user=user)
    except Invalid as invalid:
        return _clouds(request, chosen, {item.path[0]: item.message for item in invalid.errors})
    moved = ", ".join(line.path for line in changed)
    done = f"New runs of {moved} start where you chose; what runs already stays where it is."
    messages.success(request, done if changed else "Nothing has changed.")
    return redirect("admin_clouds")


def _attempt_change(request: HttpRequest, row: Cloud, done: str, **spec: Any) -> None:
    user = person(request)

    def change() -> None:
        actions.change(row, actions.manifest_of(row, **spec), acting_user=user)

    attempt(request, change, done)


def _row(name: str) -> Cloud:
    row = registry.registered().filter(name=name).first()
    if row is None:
        raise Http404(f"There is no cloud “{name}”.")
    return row


def _place(line: OrgNode) -> str:
    """The cloud that a line is placed on; "" for the default."""
    placement = getattr(line, "placement", None)
    return placement.cloud.name if placement else ""


def _field(info: FieldInfo) -> forms.Field:
    options: dict[str, Any] = {"label": info.title, "help_text": info.description, "required": False}
    kind = get_origin(info.annotation)
    if kind is Literal:
        return Words(
            widget=forms.Select(choices=[(word, word or "none") for word in get_args(info.annotation)]), **options
        )
    if isinstance(info.default, bool):
        return forms.BooleanField(**options)
    if isinstance(info.default, int):
        return Words(widget=forms.NumberInput(attrs={"min": 0, "inputmode": "numeric"}), **options)
    if isinstance(info.default, tuple) or info.default is None:
        options["help_text"] = (
            f"{info.description} {'Write name=value, one' if info.default is None else 'One'} a line."
        )
        return Words(widget=forms.Textarea(attrs={"rows": 2, "class": "code", **CODE}), **options)
    return Words(widget=forms.TextInput(attrs=CODE), **options)


def _read(info: FieldInfo, typed: str | bool) -> Any:
    if isinstance(typed, bool):
        return typed
    if isinstance(info.default, tuple):
        return typed.replace(",", " ").split()
    if info.default is None:
        pairs = (line.partition("=") for line in typed.splitlines() if line.strip())
        return {name.strip(): value.strip() for name, _, value in pairs} or None
    return typed.strip()


def _write(value: Any) -> str | bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, Mapping):
        return "\n".join(f"{name}={each}" for name, each in value.items())
    if isinstance(value, tuple):
        return "\n".join(map(str, value))
    return "" if value is None else str(value)
