"""The form of a service: converts between its fields and the manifest."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from clusters.catalog.models import ServingRuntime
from clusters.cluster.form.choices import Offer
from clusters.frame.env_text import read_env, write_env
from clusters.frame.form import Choices, ManifestForm, area, choice, line, number
from clusters.model_registry.models import ModelAlias, ModelVersion
from clusters.services.manifest import MAX_SERVICE_NAME, RolloutSpec, ServiceManifest, ServiceSpec
from portal.errors import FieldError, Invalid
from portal.web.limits import refuse_nul

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
# Form fields by manifest path. Numbers and texts are passed on as typed, for the manifest to validate.
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
# Folded fields; an error in one unfolds them.
CHANGES = (*ROLLOUT.values(),)
MORE = ("command", "env", "request_seconds", "environment", "runtime")
MOST_OFFERED = 100
VERSION = r"[1-9][0-9]{0,8}"
NUMBER: dict[str, Any] = {"class": "num-input"}


class ServiceForm(ManifestForm[ServiceManifest]):
    manifest_class = ServiceManifest
    paths = FIELDS

    name = line("Name", "The first part of its address; it stays.", maxlength=MAX_SERVICE_NAME)
    appcode = choice("Appcode")
    model = line(
        "Model",
        "With an alias, digits@champion, it follows the alias; with a version, digits/3, it stays.",
        code=True,
        list="servable",
    )
    image = choice("Image", "It needs what the model was made with.")
    flavor = choice("Flavor of one replica")
    least = number("At least", **NUMBER)
    most = number("At most", **NUMBER)
    target = number("Requests each", "In flight at one replica; more of them start another one.", **NUMBER)
    idle_after = number("Sleep after", "Seconds without a request, where at least is 0.", **NUMBER)
    follow = choice("When its alias moves", choices=FOLLOW)
    kind = choice("Kind", choices=KINDS)
    weight = number("Per cent", "Of the requests, for a canary.", **NUMBER)
    minutes = number("Minutes", "For which it is compared.", **NUMBER)
    promote = choice("When it was no worse", choices=PROMOTE)
    when_full = choice("When no GPU is free", choices=WHEN_FULL)
    cpu_flavor = choice("Flavor without GPU", required=False)
    keep_warm = number(
        "Kept warm", "Seconds for which the old replicas stay, so that going back is a moment.", **NUMBER
    )
    runtime = choice("Runtime", "What is a container has its own image; that above is for what is not.")
    environment = choice("Environment", "Over the image.", required=False)
    command = area("Command", "Run before the server.", required=False, rows=2, autocomplete="off")
    env = line("Env", "A=1 | B=2", required=False, code=True)
    request_seconds = number("Longest request", "Seconds.", **NUMBER)

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
        for name in ("appcode", "image", "environment"):
            self._offer(name, choices[name])
        self.close("image", offer.images_elsewhere)
        self._offer("flavor", choices["master_flavor"])
        self._offer("cpu_flavor", [("", "–"), *(each for each in choices["master_flavor"] if each[0] in cpu)])
        offered = list(ServingRuntime.objects.filter(enabled=True))
        self.containers = {row.name for row in offered if row.image}
        said = format_of(offer.appcode, str(self["model"].value() or ""))
        fitting = [row for row in offered if not said or said in row.formats]
        self._offer("runtime", [(row.name, _where(row, offer)) for row in fitting])
        self.models = _models(offer.appcode, {each for row in offered for each in row.formats})

    def _offer(self, name: str, choices: Choices) -> None:
        """Offers `choices` and keeps the current value, so that the manifest can report what is wrong with it."""
        said = str(self[name].value() or "")
        self.choose(name, choices if said in dict(choices) or not said else [*choices, (said, said)])

    @property
    def opens_changes(self) -> bool:
        return any(name in self.errors for name in CHANGES)

    @property
    def opens_more(self) -> bool:
        return any(name in self.errors for name in MORE)

    def document(self, said: Mapping[str, str]) -> tuple[dict[str, Any], list[FieldError]]:
        try:
            env = read_env(said["env"])
        except ValueError as error:
            raise Invalid.at("spec", "env", message=str(error)) from None
        spec: dict[str, Any] = {
            path: said[name].strip() for path, name in SPEC.items() if name not in ("env", "command")
        }
        spec |= {"env": env, "command": said["command"]}
        spec |= {name: spec[name] or None for name in ("environment", "image")}
        if spec["runtime"] in self.containers:
            spec["image"] = None  # the form always has an image selected
        spec["replicas"] = {path: said[name].strip() for path, name in REPLICAS.items()}
        spec["rollout"] = {path: said[name].strip() for path, name in ROLLOUT.items()}
        if spec["rollout"]["whenFull"] != "cpu":
            spec["rollout"]["cpuFlavor"] = None
        spec["rollout"]["cpuFlavor"] = spec["rollout"]["cpuFlavor"] or None
        metadata = {"name": said["name"].strip(), "appcode": said["appcode"]}
        document = {"kind": "service", "metadata": metadata, "spec": spec}
        refuse_nul(document)
        return document, []


def fields_of(name: str, appcode: str, spec: ServiceSpec) -> dict[str, Any]:
    chosen = {"model": spec.model, "image": spec.image or "", "flavor": spec.flavor, "name": name, "appcode": appcode}
    return _typed(spec) | chosen


def short_document(manifest: ServiceManifest) -> dict[str, Any]:
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
    """The format of the version that NAME@ALIAS or NAME/VERSION names, "" if there is none. One query."""
    name, at, alias = model.partition("@")
    name, _, number = name.partition("/")
    rows = ModelVersion.objects.filter(model__appcode__code=appcode, model__name=name, deleted_at=None)
    if at:
        rows = rows.filter(aliases__name=alias, aliases__until=None)
    elif re.fullmatch(VERSION, number):
        rows = rows.filter(number=int(number))
    else:
        return ""
    return rows.values_list("format", flat=True).first() or ""


def _where(runtime: ServingRuntime, offer: Offer) -> str:
    if not runtime.image or offer.place is None or offer.place.driver.software == "container":
        return runtime.title
    return f"{runtime.title} (not on {offer.place.title})"


def _models(appcode: str, formats: Collection[str]) -> list[str]:
    """Models that can be served: by alias, then the newest versions. Two queries."""
    good = {"model__appcode__code": appcode, "model__deleted_at": None}
    aliases = ModelAlias.objects.filter(**good, until=None, version__format__in=formats).order_by("model__name", "name")
    versions = ModelVersion.objects.filter(
        **good, deleted_at=None, state=ModelVersion.State.READY, format__in=formats
    ).order_by("-id")
    return [
        *(f"{model}@{alias}" for model, alias in aliases.values_list("model__name", "name")[:MOST_OFFERED]),
        *(f"{model}/{number}" for model, number in versions.values_list("model__name", "number")[:MOST_OFFERED]),
    ]
