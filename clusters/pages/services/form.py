"""The form of a service: what is typed ↔ its manifest."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from django import forms

from clusters.models import ModelAlias, ModelVersion, ServingRuntime
from clusters.pages.choices import Offer
from clusters.pages.conversion import read_env, write_env
from clusters.pages.raw_text import Words
from clusters.serving.manifest import MAX_SERVICE_NAME, RolloutSpec, ServiceManifest, ServiceSpec
from portal.errors import FieldError, Invalid
from portal.limits import refuse_nul
from portal.manifests import parse
from portal.pages.forms import show_errors

PLAIN = {"autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}
KINDS = (
    ("rolling", "Rolling: the new one takes over as soon as it answers"),
    ("canary", "Canary: it first answers a part of the requests"),
    ("shadow", "Shadow: it is first sent copies, and its answers go nowhere"),
)
FOLLOW = (
    ("automatic", "Roll out at once"),
    ("gate", "Wait until somebody approves it"),
    ("never", "Do nothing until somebody deploys"),
)
PROMOTE = (("automatic", "It takes over by itself"), ("by-hand", "It waits until somebody promotes it"))
WHEN_FULL = (
    ("wait", "Wait for one; the old ones go on answering"),
    ("replace", "End an old one first: an outage where it is the only one"),
    ("cpu", "Answer on a flavor without GPU"),
)
# By manifest path; those that are numbers or texts are taken as typed, for the manifest to judge.
REPLICAS = {"least": "least", "most": "most", "target": "target", "idleAfter": "idle_after"}
ROLLOUT = {
    "follow": "follow", "kind": "kind", "weight": "weight", "minutes": "minutes", "promote": "promote", "whenFull": "when_full",
    "cpuFlavor": "cpu_flavor", "keepWarm": "keep_warm",
}  # fmt: skip
SPEC = {
    "model": "model", "image": "image", "environment": "environment", "runtime": "runtime", "flavor": "flavor",
    "command": "command", "env": "env", "requestSeconds": "request_seconds",
}  # fmt: skip
FIELDS = {
    "metadata.name": "name", "metadata.appcode": "appcode", "spec.replicas": "most",
    **{f"spec.replicas.{path}": name for path, name in REPLICAS.items()},
    **{f"spec.rollout.{path}": name for path, name in ROLLOUT.items()},
    **{f"spec.{path}": name for path, name in SPEC.items()},
}  # fmt: skip
# Fields that stand folded: an error there opens the fold.
CHANGES = (*ROLLOUT.values(),)
MORE = ("command", "env", "request_seconds", "environment", "runtime")
MOST_OFFERED = 100
NUMBER = r"[1-9][0-9]{0,8}"


def _number(label: str, hint: str = "", **more: Any) -> Words:
    attributes = {"inputmode": "numeric", "autocomplete": "off", "class": "num-input"}
    return Words(label=label, help_text=hint, widget=forms.TextInput(attrs=attributes), **more)


def _choice(label: str, choices: tuple[tuple[str, str], ...] = (), hint: str = "", **more: Any) -> Words:
    return Words(label=label, help_text=hint, widget=forms.Select(choices=choices), **more)


class ServiceForm(forms.Form):
    use_required_attribute = False

    name = Words(
        label="Name",
        help_text="The first part of its address; it stays.",
        widget=forms.TextInput(attrs={"maxlength": MAX_SERVICE_NAME, **PLAIN}),
    )
    appcode = _choice("Appcode")
    model = Words(
        label="Model",
        help_text="With an alias, digits@champion, it follows the alias; with a version, digits/3, it stays.",
        widget=forms.TextInput(attrs={"class": "code", "list": "servable", **PLAIN}),
    )
    image = _choice("Image", hint="It needs what the model was made with.")
    flavor = _choice("Flavor of one replica")
    least = _number("At least")
    most = _number("At most")
    target = _number("Requests each", "In flight at one replica; more of them start another one.")
    idle_after = _number("Sleep after", "Seconds without a request, where at least is 0.")
    follow = _choice("When its alias moves", FOLLOW)
    kind = _choice("Kind", KINDS)
    weight = _number("Per cent", "Of the requests, for a canary.")
    minutes = _number("Minutes", "For which it is compared.")
    promote = _choice("When it was no worse", PROMOTE)
    when_full = _choice("When no GPU is free", WHEN_FULL)
    cpu_flavor = _choice("Flavor without GPU", required=False)
    keep_warm = _number("Kept warm", "Seconds for which the old replicas stay, so that going back is a moment.")
    runtime = _choice("Runtime", hint="What is a container has its own image; that above is for what is not.")
    environment = _choice("Environment", hint="Over the image.", required=False)
    command = Words(
        label="Command",
        required=False,
        help_text="Run before the server.",
        widget=forms.Textarea(attrs={"rows": 2, "class": "code", **PLAIN}),
    )
    env = Words(
        label="Env",
        required=False,
        help_text="A=1 | B=2",
        widget=forms.TextInput(attrs={"class": "code", **PLAIN}),
    )
    request_seconds = _number("Longest request", "Seconds.")

    def __init__(self, offer: Offer, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.offer = offer
        chosen = offer.defaults()
        usual = ServiceSpec(model="x/1", image="x", flavor="x")
        image = offer.image_with("serving") or chosen["image"]
        first = {"appcode": offer.appcode, "image": image, "flavor": chosen.get("master_flavor", "")}
        self.initial = {**_typed(usual), **first, "model": "", **self.initial}
        choices = offer.choices()
        cpu = {flavor.name for flavor in offer.flavors if not flavor.gpus}
        self._offer("appcode", choices["appcode"])
        self._offer("image", choices["image"])
        self._offer("environment", choices["environment"])
        self._offer("flavor", choices["master_flavor"])
        self._offer("cpu_flavor", [("", "–"), *(each for each in choices["master_flavor"] if each[0] in cpu)])
        offered = list(ServingRuntime.objects.filter(enabled=True))
        self.containers = {row.name for row in offered if row.image}
        said = format_of(offer.appcode, str(self["model"].value() or ""))
        fitting = [row for row in offered if not said or said in row.formats]
        self._offer("runtime", [(row.name, _where(row, offer)) for row in fitting])
        self.models = _models(offer.appcode, {each for row in offered for each in row.formats})

    def _offer(self, name: str, choices: list[tuple[str, str]]) -> None:
        """What is chosen already stays a choice, so that the manifest says what is wrong with it."""
        widget = self.fields[name].widget
        assert isinstance(widget, forms.Select)
        said = str(self[name].value() or "")
        there = {value for value, _ in choices}
        widget.choices = choices if said in there or not said else [*choices, (said, said)]

    def fix(self, *names: str) -> None:
        for name in names:
            self.fields[name].disabled = True

    @property
    def opens_changes(self) -> bool:
        return any(name in self.errors for name in CHANGES)

    @property
    def opens_more(self) -> bool:
        return any(name in self.errors for name in MORE)

    def manifest(self) -> ServiceManifest | None:
        """None where something is wrong; the sentences then stand at their fields."""
        if not self.is_valid():
            return None
        said = self.cleaned_data
        try:
            document = self._document(said)
            refuse_nul(document)
            return parse(ServiceManifest, document)
        except Invalid as invalid:
            show_errors(self, invalid, FIELDS)
        return None

    def _document(self, said: dict[str, str]) -> dict[str, Any]:
        try:
            env = read_env(said["env"])
        except ValueError as error:
            raise Invalid([FieldError(("spec", "env"), str(error))]) from None
        spec: dict[str, Any] = {
            path: said[name].strip() for path, name in SPEC.items() if name not in ("env", "command")
        }
        spec |= {"env": env, "command": said["command"]}
        spec |= {name: spec[name] or None for name in ("environment", "image")}
        if spec["runtime"] in self.containers:
            spec["image"] = None  # a form always has one chosen
        spec["replicas"] = {path: said[name].strip() for path, name in REPLICAS.items()}
        spec["rollout"] = {path: said[name].strip() for path, name in ROLLOUT.items()}
        if spec["rollout"]["whenFull"] != "cpu":
            spec["rollout"]["cpuFlavor"] = None
        spec["rollout"]["cpuFlavor"] = spec["rollout"]["cpuFlavor"] or None
        return {"kind": "service", "metadata": {"name": said["name"].strip(), "appcode": said["appcode"]}, "spec": spec}


def fields_of(name: str, appcode: str, spec: ServiceSpec) -> dict[str, Any]:
    """What stands in the form of a service."""
    chosen = {"model": spec.model, "image": spec.image or "", "flavor": spec.flavor, "name": name, "appcode": appcode}
    return _typed(spec) | chosen


def short_document(manifest: ServiceManifest) -> dict[str, Any]:
    """As people would write it: without what is the default anyway."""
    document = manifest.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {"kind": "service", **document}


def _typed(spec: ServiceSpec) -> dict[str, Any]:
    rollout: RolloutSpec = spec.rollout
    return {
        **{name: str(getattr(spec.replicas, name)) for name in REPLICAS.values()},
        **{name: str(getattr(rollout, name) or "") for name in ROLLOUT.values()},
        "keep_warm": str(rollout.keep_warm),
        "environment": spec.environment or "",
        "runtime": spec.runtime,
        "command": spec.command,
        "env": write_env(spec.env),
        "request_seconds": str(spec.request_seconds),
    }


def format_of(appcode: str, model: str) -> str:
    """That of the version which NAME@ALIAS or NAME/VERSION names, "" where it names none. One query."""
    name, at, alias = model.partition("@")
    name, _, number = name.partition("/")
    rows = ModelVersion.objects.filter(model__appcode__code=appcode, model__name=name, deleted_at=None)
    if at:
        rows = rows.filter(aliases__name=alias, aliases__until=None)
    elif re.fullmatch(NUMBER, number):
        rows = rows.filter(number=int(number))
    else:
        return ""
    return rows.values_list("format", flat=True).first() or ""


def _where(runtime: ServingRuntime, offer: Offer) -> str:
    if not runtime.image or offer.place is None or offer.place.driver.software == "container":
        return runtime.title
    return f"{runtime.title} (not on {offer.place.title})"


def _models(appcode: str, formats: Collection[str]) -> list[str]:
    """What can be served: by alias, then the newest versions. Two queries."""
    good = {"model__appcode__code": appcode, "model__deleted_at": None}
    aliases = ModelAlias.objects.filter(**good, until=None, version__format__in=formats).order_by("model__name", "name")
    versions = ModelVersion.objects.filter(
        **good, deleted_at=None, state=ModelVersion.State.READY, format__in=formats
    ).order_by("-id")
    return [
        *(f"{model}@{alias}" for model, alias in aliases.values_list("model__name", "name")[:MOST_OFFERED]),
        *(f"{model}/{number}" for model, number in versions.values_list("model__name", "number")[:MOST_OFFERED]),
    ]
