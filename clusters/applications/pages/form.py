"""The four-step form of an application: another way to write its manifest.

It is one form. Each step shows its own fields and carries the others as hidden inputs, so moving between steps loses
nothing and needs no script. Each error is shown at its field's step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django import forms

from clusters.applications.manifest import USUAL_SIZE, ApplicationManifest, cluster_manifest
from clusters.applications.presets import PRESETS
from clusters.cluster.form.choices import Offer, flavor_label
from clusters.cluster.form.data import CLASS_CHOICES, UNIT_CHOICES, duration, seconds
from clusters.environments.models import Plugin
from clusters.frame.env_text import read_env, write_env
from clusters.frame.form import ManifestForm, area, aria, choice, line, number
from clusters.frame.raw_text import Words
from clusters.frameworks import APPLICATIONS
from clusters.frameworks.base import Framework
from clusters.frameworks.web import Web
from clusters.manifest.input import read_where, write_text
from datastores.models import Datastore
from portal.errors import FieldError

STEPS = ("Kind", "Application", "Resources", "Review")
# Fields that only some kinds have.
OF_KIND = ("model", "runs", "command", "endpoints", "requirements", "env")
FIELDS: tuple[tuple[str, ...], ...] = (
    ("appcode", "type"),
    ("name", "image", "environment", "plugins", *OF_KIND),
    (
        "flavor",
        "storage",
        "size",
        "input",
        "output",
        "output_path",
        "idle_policy",
        "idle_after",
        "idle_after_unit",
        "time_limit",
        "time_limit_unit",
        "priority_class",
        "access",
        "people",
    ),
    (),
)
REVIEW = len(STEPS)
NEW, STORE = "new", "store:"
# What a web program serves if nobody says it.
USUAL_SERVED = "web=8080"
ENDPOINT = re.compile(r"(?P<name>[^\s=]+)\s*=\s*(?P<port>[0-9]{1,9})(?P<health>/\S*)?")
FIELD_OF_PATH = {
    "metadata.appcode": "appcode",
    "metadata.name": "name",
    **{
        f"spec.{name}": name
        for name in (
            "type", "image", "environment", "requirements", "plugins", "model", "flavor", "storage", "input", "output", "command",
            "env", "runs", "endpoints", "access",
        )
    },
    "spec.storage.size": "size",
    "spec.outputPath": "output_path",
    "spec.timeLimit": "time_limit",
    "spec.priorityClass": "priority_class",
    "spec.idle": "idle_policy",
    "spec.idle.after": "idle_after",
    "spec.access.people": "people",
}  # fmt: skip
# Defaults, which a manifest leaves out.
USUAL: dict[str, Any] = {
    **dict.fromkeys(("environment", "storage", "output", "command", "model"), ""),
    "input": None,
    "outputPath": "{name}/{run}",
    "env": {},
    "timeLimit": None,
    "priorityClass": "normal",
    "idle": None,
    "endpoints": [],
    "runs": [],
    "plugins": [],
    "requirements": [],
    "access": {"to": "members"},
}
IDLE = {
    "stop": "It is announced, then stopped with its files kept",
    "announce": "It is announced, and goes on",
    "never": "It goes on",
}


@dataclass(frozen=True)
class Kind:
    """What the form says of a kind of application, and its fields of `OF_KIND`: needed ones, others, and folded ones."""

    text: str
    needed: Sequence[str] = ()
    others: Sequence[str] = ()
    folded: Sequence[str] = ()

    @property
    def own(self) -> Sequence[str]:
        return (*self.needed, *self.others, *self.folded)


KINDS: Mapping[str, Kind] = {
    "jupyter": Kind("JupyterLab in the browser, with GPUs", folded=("command", "runs", "endpoints", "env")),
    "web": Kind("Gradio, Streamlit, MLflow, your own", ("command",), ("endpoints", "requirements", "env")),
    "serving": Kind("A registered model that answers", ("model",), folded=("requirements", "command", "env")),
    "tensorboard": Kind("Curves of runs, side by side", ("runs",), folded=("requirements", "command", "env")),
}


class Several(forms.CheckboxSelectMultiple):
    """Checkboxes whose values share one field, separated by commas, so that other steps can carry them."""

    def value_from_datadict(self, data: Any, files: Any, name: str) -> str:
        return ", ".join(data.getlist(name) if hasattr(data, "getlist") else filter(None, [data.get(name)]))

    def format_value(self, value: Any) -> list[str]:
        return words(value)


class ApplicationForm(ManifestForm[ApplicationManifest]):
    manifest_class = ApplicationManifest
    paths = FIELD_OF_PATH

    appcode = choice("Appcode", "Who pays, and whose datastores it sees.")
    type = choice("Kind", initial=next(iter(APPLICATIONS)))
    name = line("Name", "Lower-case letters, digits and “-”; it is part of the address.", maxlength=40)
    image = choice("Image")
    environment = choice("Environment", "Packages over the image that were saved in a notebook.", required=False)
    plugins = Words(
        label="Plugins",
        required=False,
        widget=Several(),
        help_text="What its JupyterLab has besides. They are the administrators' choice.",
    )
    model = line(
        "Model",
        "What it answers, as MODEL@ALIAS or MODEL/VERSION: digits@champion, digits/3.",
        required=False,
        code=True,
    )
    runs = line(
        "Runs",
        "Whose output it shows, as CLUSTER/NUMBER, divided by commas: train/3, train/4.",
        required=False,
        code=True,
    )
    requirements = area(
        "Requirements",
        "What pip installs over the image before it starts, one a line: streamlit>=1.40.",
        required=False,
        rows=2,
    )
    command = area(
        "Command",
        "What runs before it starts.",
        required=False,
        rows=3,
    )
    endpoints = line(
        "Serves",
        "By HTTP, as NAME=PORT, several divided by |, e.g. web=8080 | docs=8081/health.",
        required=False,
        code=True,
    )
    env = area("Environment variables", "One NAME=value per line, or separated by |.", required=False, rows=2)
    flavor = choice("Flavor")
    storage = choice("Files", "mounted at /elearn/home; they outlive the application", required=False, initial=NEW)
    size = line("Size of the volume", f"of a volume of its own, like {USUAL_SIZE}", required=False, initial=USUAL_SIZE)
    input = choice("Input", "mounted at /elearn/input", required=False)
    output = choice("Output", "mounted at /elearn/output", required=False)
    output_path = line(
        "Output folder",
        "Inside the output datastore; {name} and {run} are filled in.",
        required=False,
        initial="{name}/{run}",
        code=True,
    )
    idle_policy = choice("When it does nothing", required=False, initial="stop")
    idle_after = number(
        "For",
        "Cells, programs in terminals, CPU, GPU and network are work; an open page is none.",
        required=False,
        initial="2",
    )
    idle_after_unit = choice(
        "Unit", choices=UNIT_CHOICES, required=False, initial="hours", **aria("Unit of the idle time")
    )
    time_limit = number(
        "Time limit", "It is ended after this long, whatever it does. Empty: it has no end of its own.", required=False
    )
    time_limit_unit = choice("Unit", choices=UNIT_CHOICES, initial="hours", **aria("Unit of the time limit"))
    priority_class = choice(
        "Class",
        "Spare GPUs have a price of their own, and do not count against the quota. Whoever works in it is interrupted then.",
        CLASS_CHOICES,
        initial="normal",
    )
    access = choice("Who may open it", "Developers and owners of the appcode always may.", initial="members")
    people = line("People", "User names, divided by commas.", required=False)

    def __init__(self, offer: Offer, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.offer = offer
        choices = offer.choices()
        homes = [store for store in offer.datastores if store.kind != Datastore.Kind.S3]
        self.offer_kept("type", [(name, driver.title) for name, driver in APPLICATIONS.items()])
        self._offer_plugins()
        self.offer_kept("flavor", [(flavor.name, flavor_label(flavor)) for flavor in offer.flavors])
        stores = [(STORE + store.name, f"{store.name} ({store.get_kind_display()})") for store in homes]
        none = ("", "None: what it writes goes with its run")
        self.offer_kept("storage", [(NEW, "A volume of its own"), *stores, none], prefix=STORE)
        for name in ("appcode", "image", "environment", "input", "output"):
            self.offer_kept(name, choices[name])
        self.close("image", offer.images_elsewhere)
        driver = APPLICATIONS.get(str(self["type"].value()))
        if driver is not None and driver.needs_command:
            self.fields["command"].help_text = "What it is started with; it listens where HOST and PORT say."
        if self["type"].value() == Web.name:
            lines = str(self["command"].value() or "").count("\n") + 2
            self.fields["command"].widget.attrs["rows"] = max(3, min(lines, 20))
            self.fields["endpoints"].help_text += f" Empty means {USUAL_SERVED}; the command gets the port as PORT."
        for name in self.kind.needed:
            self.fields[name].required = True
        self._offer_idle(driver)
        shell = driver is not None and driver.is_shell
        # Whoever opens a shell runs programs, so it is offered neither to viewers nor to everybody.
        everybody = [] if shell else [("everybody", "Everybody who is signed in")]
        members = ("members", "Developers and owners" if shell else "All members of the appcode")
        self.offer_kept("access", [members, ("people", "Developers, owners and people named below"), *everybody])

    def _offer_plugins(self) -> None:
        """Plugins of all images, because the image is chosen on the same page. Also chosen plugins that are no longer offered."""
        rows = {row.name: row for row in reversed(self.offer.plugins)}
        said = {name: [row.image.name for row in self.offer.plugins if row.name == name] for name in rows}
        several = len({row.image_id for row in self.offer.plugins}) > 1
        choices = [(name, plugin_label(rows[name], said[name] if several else ())) for name in sorted(rows)]
        others = [name for name in words(self["plugins"].value()) if name not in rows]
        choices += [(name, name if name.partition(":")[0] in rows else f"{name} (not available)") for name in others]
        self.choose("plugins", choices)

    @property
    def has_plugins(self) -> bool:
        driver = APPLICATIONS.get(str(self["type"].value()))
        offers = driver is not None and driver.has_plugins and bool(self.offer.plugins)
        return offers or bool(self["plugins"].value())

    @property
    def tells_idle(self) -> bool:
        return _tells(str(self["type"].value()))

    def _offer_idle(self, driver: Framework | None) -> None:
        """Offers the idle policies that this kind of application supports."""
        nobody = [("never", "It goes on, because nobody can tell whether it works")]
        self.choose("idle_policy", list(IDLE.items()) if driver is None or driver.idle_signal else nobody)

    def document(self, values: Mapping[str, str]) -> tuple[dict[str, Any], list[FieldError]]:
        return document_of(values)

    def read(self, document: Any) -> ApplicationManifest:
        manifest = super().read(document)
        cluster_manifest(manifest)
        return manifest

    def first_wrong(self, before: int) -> int:
        """The first step before `before` that has an error; 0 if none has."""
        wrong = (n for n, fields in enumerate(FIELDS[: before - 1], 1) if any(name in self.errors for name in fields))
        return next(wrong, 0)

    def fields_at(self, step: int) -> list[forms.BoundField]:
        return [self[name] for name in FIELDS[step - 1]]

    def carried(self, step: int) -> list[forms.BoundField]:
        return [self[name] for name in self.fields if name not in FIELDS[step - 1]]

    def summary(self, step: int) -> list[tuple[str, str]]:
        """The choices of a step for display, without empty or irrelevant ones."""
        said = self.said()
        silent = {
            "time_limit_unit",
            "idle_after_unit",
            *(["idle_after"] if said["idle_policy"] in ("", "never") or not _tells(said["type"]) else []),
            *(["size"] if said["storage"] != NEW else []),
            *(["output_path"] if not said["output"] else []),
            *(["people"] if said["access"] != "people" else []),
            *(["priority_class"] if said["priority_class"] == "normal" else []),
        }
        found = []
        for field in self.fields_at(step):
            value, widget = said[field.name], field.field.widget
            if not value or field.name in silent:
                continue
            if isinstance(widget, forms.Select):
                value = str(dict(widget.choices).get(value, value))
            # “90 min” has its unit already.
            if field.name in ("time_limit", "idle_after") and value.strip().isdigit():
                value = f"{value} {said[f'{field.name}_unit']}"
            if field.name == "idle_policy" and not _tells(said["type"]):
                continue
            found.append((str(field.label), value))
        return found

    @property
    def has_environments(self) -> bool:
        return bool(self.offer.environments) or bool(self["environment"].value())

    @property
    def kind(self) -> Kind:
        return kind_of(str(self["type"].value()))

    @property
    def kinds(self) -> list[tuple[str, str, str]]:
        """Value, title and text of each kind."""
        return [(name, driver.title, kind_of(name).text) for name, driver in APPLICATIONS.items()]

    @property
    def presets(self) -> list[tuple[str, str, str]]:
        """Value, title and text of each preset; none once the command is the user's own."""
        command = str(self["command"].value() or "").replace("\r\n", "\n").strip()
        if self["type"].value() != Web.name or command not in (
            "",
            *(each.fields["command"] for each in PRESETS.values()),
        ):
            return []
        return [(name, each.title, each.text) for name, each in PRESETS.items()]

    @property
    def main(self) -> list[forms.BoundField]:
        """The fields of its kind, and those of other kinds that are set or wrong: nothing is lost unseen."""
        kind = self.kind
        strange = [name for name in OF_KIND if name not in kind.own and self._is_set(name)]
        return [self[name] for name in (*kind.needed, *kind.others, *strange)]

    @property
    def folded(self) -> list[forms.BoundField]:
        return [self[name] for name in self.kind.folded]

    @property
    def unseen(self) -> list[forms.BoundField]:
        """The fields of other kinds, which are empty."""
        shown = {field.name for field in (*self.main, *self.folded)}
        return [self[name] for name in OF_KIND if name not in shown]

    @property
    def opens_folded(self) -> bool:
        """Whether to unfold the folded fields: they are set or wrong."""
        return any(self._is_set(name) for name in self.kind.folded)

    def _is_set(self, name: str) -> bool:
        return bool(self[name].value()) or name in self.errors


def kind_of(name: str) -> Kind:
    return KINDS.get(name, Kind("", folded=OF_KIND))


def document_of(values: Mapping[str, str]) -> tuple[dict[str, Any], list[FieldError]]:
    """The manifest document for these field values, and errors for values that cannot be expressed in one."""
    complaints: list[FieldError] = []
    env: dict[str, Any] = {}
    served: list[dict[str, Any]] = []
    try:
        env = read_env(values["env"])
    except ValueError as error:
        complaints.append(FieldError(("spec", "env"), str(error)))
    try:
        usual = USUAL_SERVED if values["type"] == Web.name else ""
        served = read_endpoints(values["endpoints"].strip() or usual)
    except ValueError as error:
        complaints.append(FieldError(("spec", "endpoints"), str(error)))
    storage, people = values["storage"], re.split(r"[,\s]+", values["people"].strip())
    spec = {
        "type": values["type"],
        "image": values["image"],
        "environment": values["environment"],
        "flavor": values["flavor"],
        "storage": {"size": values["size"].strip()}
        if storage == NEW
        else storage and {"datastore": storage.removeprefix(STORE)},
        "input": read_where(values["input"]),
        "output": values["output"],
        "outputPath": values["output_path"],
        "runs": words(values["runs"]),
        "model": values["model"].strip(),
        "plugins": words(values["plugins"]),
        "requirements": list(filter(None, map(str.strip, values["requirements"].split("\n")))),
        "command": values["command"],
        "env": env,
        "timeLimit": seconds(values["time_limit"], values["time_limit_unit"]),
        "priorityClass": values["priority_class"] or "normal",
        "endpoints": served,
        "idle": _idle_of(values),
        "access": {"to": values["access"], **({"people": people} if values["access"] == "people" else {})},
    }
    return {
        "kind": "application",
        "metadata": {"name": values["name"], "appcode": values["appcode"]},
        "spec": {key: value for key, value in spec.items() if key not in USUAL or value != USUAL[key]},
    }, complaints


def fields_of(manifest: ApplicationManifest) -> dict[str, str]:
    """The inverse of `document_of`: field values for `manifest`."""
    spec = manifest.spec
    limit, unit = duration(spec.time_limit)
    idle, idle_unit = duration(spec.idle.after)
    storage = spec.storage
    return {
        "appcode": manifest.metadata.appcode,
        "name": manifest.metadata.name,
        "type": spec.type,
        "image": spec.image,
        "environment": spec.environment or "",
        "command": spec.command,
        "endpoints": write_endpoints(manifest),
        "runs": ", ".join(spec.runs),
        "model": spec.model or "",
        "plugins": ", ".join(spec.plugins),
        "requirements": "\n".join(spec.requirements),
        "env": write_env(spec.env),
        "flavor": spec.flavor,
        "storage": "" if storage is None else STORE + storage.datastore if storage.datastore else NEW,
        "size": (storage.size if storage else "") or "",
        "input": write_text(spec.input),
        "output": spec.output or "",
        "output_path": spec.output_path,
        "time_limit": limit,
        "time_limit_unit": unit,
        "priority_class": spec.priority_class,
        "idle_policy": spec.idle.policy,
        "idle_after": idle,
        "idle_after_unit": idle_unit,
        "access": spec.access.to,
        "people": ", ".join(spec.access.people),
    }


def words(value: Any) -> list[str]:
    return [name for name in re.split(r"[,\s]+", str(value or "")) if name]


def plugin_label(plugin: Plugin, images: Sequence[str]) -> str:
    """For example "Archive – downloads folders (over jupyter-4-6)"."""
    said = f" – {plugin.description}" if plugin.description else ""
    return f"{plugin.title}{said}" + (f" (over {', '.join(images)})" if images else "")


def _tells(kind: str) -> bool:
    """Whether this kind of application reports idleness."""
    driver = APPLICATIONS.get(kind)
    return driver is not None and bool(driver.idle_signal)


def _idle_of(values: Mapping[str, str]) -> dict[str, Any] | None:
    """The idle policy; None for a kind that reports no idleness."""
    if not _tells(values["type"]):
        return None
    policy = values["idle_policy"] or "never"
    after = {} if policy == "never" else {"after": seconds(values["idle_after"], values["idle_after_unit"])}
    return {"policy": policy, **after}


def read_endpoints(text: str) -> list[dict[str, Any]]:
    """Parses `web=8080 | docs=8081/health`. Raises ValueError with the invalid part."""
    found = []
    for part in filter(None, (each.strip() for each in text.split("|"))):
        match = ENDPOINT.fullmatch(part)
        if match is None:
            raise ValueError(f"“{part}” is nothing that is served; write NAME=PORT, for example web=8080.")
        path = {"health": match["health"]} if match["health"] else {}
        found.append({"name": match["name"], "port": int(match["port"]), **path})
    return found


def write_endpoints(manifest: ApplicationManifest) -> str:
    """The inverse of `read_endpoints`."""
    served = manifest.spec.endpoints
    return " | ".join(f"{each.name}={each.port}{'' if each.health == '/' else each.health}" for each in served)
