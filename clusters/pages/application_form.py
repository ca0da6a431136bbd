"""The four steps by which an application is made: another way to write its manifest.

One form, of which each step shows its fields and carries the others along hidden, so going back and forth loses nothing and needs
no script. As with the form of a cluster, it judges nothing itself: manifest and action do, and each sentence stands beside the
field that its path names, at the step of that field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from django import forms

from clusters.applications.manifest import USUAL_SIZE, ApplicationManifest, cluster_manifest
from clusters.frameworks import APPLICATIONS
from clusters.frameworks.base import Framework
from clusters.input import read_where, write_text
from clusters.models import Plugin
from clusters.pages.choices import Offer, flavor_label
from clusters.pages.conversion import TIME_UNITS, read_env, seconds, write_env
from clusters.pages.raw_text import Words
from datastores.models import Datastore
from portal.errors import FieldError, Invalid
from portal.manifests import parse
from portal.pages.forms import with_link

STEPS = ("Appcode", "Application", "Resources", "Review")
FIELDS: tuple[tuple[str, ...], ...] = (
    ("appcode",),
    ("type", "name", "image", "environment", "plugins", "model", "runs", "requirements", "command", "endpoints", "env"),
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
        "access",
        "people",
    ),
    (),
)
REVIEW = len(STEPS)
NEW, STORE = "new", "store:"
ENDPOINT = re.compile(r"(?P<name>[^\s=]+)\s*=\s*(?P<port>[0-9]{1,9})(?P<health>/\S*)?")
# The longest beginning of a path that stands here names its field.
FIELD_OF_PATH: dict[tuple[str, ...], str] = {
    ("metadata", "appcode"): "appcode",
    ("metadata", "name"): "name",
    **{
        ("spec", name): name
        for name in (
            "type",
            "image",
            "environment",
            "requirements",
            "plugins",
            "model",
            "flavor",
            "storage",
            "input",
            "output",
            "command",
            "env",
        )
    },
    ("spec", "storage", "size"): "size",
    ("spec", "outputPath"): "output_path",
    ("spec", "runs"): "runs",
    ("spec", "timeLimit"): "time_limit",
    ("spec", "idle"): "idle_policy",
    ("spec", "idle", "after"): "idle_after",
    ("spec", "endpoints"): "endpoints",
    ("spec", "access"): "access",
    ("spec", "access", "people"): "people",
}
# What need not be said.
USUAL: dict[str, Any] = {
    **dict.fromkeys(("environment", "storage", "output", "command", "model"), ""),
    "input": None,
    "outputPath": "{name}/{run}",
    "env": {},
    "timeLimit": None,
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
PLAIN = {"autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}


def _code(rows: int) -> forms.Textarea:
    return forms.Textarea(attrs={"rows": rows, "class": "code", "spellcheck": "false", "autocapitalize": "none"})


class Several(forms.CheckboxSelectMultiple):
    """Boxes whose names stand in one field, divided by commas, as they are carried along at the other steps."""

    def value_from_datadict(self, data: Any, files: Any, name: str) -> str:
        return ", ".join(data.getlist(name) if hasattr(data, "getlist") else filter(None, [data.get(name)]))

    def format_value(self, value: Any) -> list[str]:
        return words(value)


class ApplicationForm(forms.Form):
    """After `is_valid()`, `manifest` is what was asked for."""

    use_required_attribute = False

    appcode = Words(label="Appcode", widget=forms.Select(), help_text="Who pays, and whose datastores it sees.")
    type = Words(label="Application", widget=forms.Select(), initial=next(iter(APPLICATIONS)))
    name = Words(
        label="Name",
        help_text="Lower-case letters, digits and “-”; it is part of the address.",
        widget=forms.TextInput(attrs={**PLAIN, "maxlength": 40}),
    )
    image = Words(label="Image", widget=forms.Select())
    environment = Words(
        label="Environment",
        required=False,
        widget=forms.Select(),
        help_text="Packages over the image that were saved in a notebook.",
    )
    plugins = Words(
        label="Plugins",
        required=False,
        widget=Several(),
        help_text="What its JupyterLab has besides. They are the administrators' choice.",
    )
    model = Words(
        label="Model",
        required=False,
        help_text="Of a model server: what it answers, as MODEL@ALIAS or MODEL/VERSION: digits@champion, digits/3.",
        widget=forms.TextInput(attrs={**PLAIN, "class": "code"}),
    )
    runs = Words(
        label="Runs",
        required=False,
        help_text="Of TensorBoard and Jupyter: whose output it shows, as CLUSTER/NUMBER, divided by commas: train/3, train/4.",
        widget=forms.TextInput(attrs={**PLAIN, "class": "code"}),
    )
    requirements = Words(
        label="Requirements",
        required=False,
        help_text="What pip installs over the image before it starts, one a line: streamlit>=1.40. In Jupyter, install packages "
        "in a cell: they stay.",
        widget=_code(2),
    )
    command = Words(
        label="Command",
        required=False,
        help_text="What a web program is started with; it listens where HOST and PORT say. Of Jupyter: what runs before it.",
        widget=_code(3),
    )
    endpoints = Words(
        label="Serves",
        required=False,
        help_text="By HTTP, as NAME=PORT, several divided by |, e.g. web=8080 | docs=8081/health. Jupyter serves its notebook.",
        widget=forms.TextInput(attrs={**PLAIN, "class": "code"}),
    )
    env = Words(
        label="Environment variables",
        required=False,
        help_text="One NAME=value per line, or separated by |.",
        widget=_code(2),
    )
    flavor = Words(label="Flavor", widget=forms.Select())
    storage = Words(
        label="Files",
        required=False,
        initial=NEW,
        widget=forms.Select(),
        help_text="mounted at /elearn/home; they outlive the application",
    )
    size = Words(
        label="Size of the volume",
        required=False,
        initial=USUAL_SIZE,
        widget=forms.TextInput(attrs=PLAIN),
        help_text=f"of a volume of its own, like {USUAL_SIZE}",
    )
    input = Words(label="Input", required=False, widget=forms.Select(), help_text="mounted at /elearn/input")
    output = Words(label="Output", required=False, widget=forms.Select(), help_text="mounted at /elearn/output")
    output_path = Words(
        label="Output folder",
        required=False,
        initial="{name}/{run}",
        widget=forms.TextInput(attrs={**PLAIN, "class": "code"}),
        help_text="Inside the output datastore; {name} and {run} are filled in.",
    )
    idle_policy = Words(label="When it does nothing", required=False, initial="stop", widget=forms.Select())
    idle_after = Words(
        label="For",
        required=False,
        initial="2",
        widget=forms.TextInput(attrs={"inputmode": "numeric", "autocomplete": "off"}),
        help_text="Cells, programs in terminals, CPU, GPU and network are work; an open page is none.",
    )
    idle_after_unit = Words(
        label="Unit",
        required=False,
        initial="hours",
        widget=forms.Select(
            choices=[(unit, unit) for unit in reversed(TIME_UNITS)], attrs={"aria-label": "Unit of the idle time"}
        ),
    )
    time_limit = Words(
        label="Time limit",
        required=False,
        widget=forms.TextInput(attrs={"inputmode": "numeric", "autocomplete": "off"}),
        help_text="It is ended after this long, whatever it does. Empty: it has no end of its own.",
    )
    time_limit_unit = Words(
        label="Unit",
        initial="hours",
        widget=forms.Select(
            choices=[(unit, unit) for unit in reversed(TIME_UNITS)], attrs={"aria-label": "Unit of the time limit"}
        ),
    )
    access = Words(
        label="Who else may open it",
        initial="members",
        widget=forms.Select(),
        help_text="Developers and owners of the appcode always may.",
    )
    people = Words(
        label="People",
        required=False,
        widget=forms.TextInput(attrs=PLAIN),
        help_text="User names, divided by commas.",
    )

    def __init__(self, offer: Offer, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.offer = offer
        self.manifest: ApplicationManifest | None = None
        choices = offer.choices()
        homes = [store for store in offer.datastores if store.kind != Datastore.Kind.S3]
        self._choose("appcode", choices["appcode"])
        self._choose("type", [(name, driver.title) for name, driver in APPLICATIONS.items()])
        self._choose("image", choices["image"])
        self._choose("environment", choices["environment"])
        self._offer_plugins()
        self._choose("flavor", [(flavor.name, flavor_label(flavor)) for flavor in offer.flavors])
        self._choose(
            "storage",
            [
                (NEW, "A volume of its own"),
                *((STORE + store.name, f"{store.name} ({store.get_kind_display()})") for store in homes),
                ("", "None: what it writes goes with its run"),
            ],
        )
        for name in ("input", "output"):
            self._choose(name, choices[name])
        driver = APPLICATIONS.get(str(self["type"].value()))
        self._offer_idle(driver)
        shell = driver is not None and driver.is_shell
        # Who opens a shell runs programs with it; those who only look do not.
        everybody = [] if shell else [("everybody", "Everybody who is signed in")]
        self._choose(
            "access",
            [
                ("members", "Nobody" if shell else "Viewers of the appcode"),
                ("people", "People named below"),
                *everybody,
            ],
        )

    def _offer_plugins(self) -> None:
        """Those of all images, because the image is chosen on the same page; and what was chosen even if it is gone by now."""
        widget, rows = self.fields["plugins"].widget, {row.name: row for row in reversed(self.offer.plugins)}
        assert isinstance(widget, forms.CheckboxSelectMultiple)
        said = {name: [row.image.name for row in self.offer.plugins if row.name == name] for name in rows}
        several = len({row.image_id for row in self.offer.plugins}) > 1
        choices = [(name, plugin_label(rows[name], said[name] if several else ())) for name in sorted(rows)]
        others = [name for name in words(self["plugins"].value()) if name not in rows]
        choices += [(name, name if name.partition(":")[0] in rows else f"{name} (not available)") for name in others]
        widget.choices = choices

    @property
    def has_plugins(self) -> bool:
        """Whether there is anything to choose for it, or something that was chosen."""
        driver = APPLICATIONS.get(str(self["type"].value()))
        offers = driver is not None and driver.has_plugins and bool(self.offer.plugins)
        return offers or bool(self["plugins"].value())

    @property
    def tells_idle(self) -> bool:
        return _tells(str(self["type"].value()))

    def _offer_idle(self, driver: Framework | None) -> None:
        """What may follow on idleness, of what can be known to be idle."""
        widget = self.fields["idle_policy"].widget
        assert isinstance(widget, forms.Select)
        if driver is None or driver.idle_signal:
            widget.choices = list(IDLE.items())
        else:
            widget.choices = [("never", "It goes on, because nobody can tell whether it works")]

    def clean(self) -> dict[str, Any]:
        document, complaints = document_of({name: self.cleaned_data.get(name, "") for name in self.fields})
        try:
            manifest = parse(ApplicationManifest, document)
            cluster_manifest(manifest)
            self.manifest = None if complaints else manifest
        except Invalid as invalid:
            complaints += invalid.errors
        self.complain(complaints)
        return self.cleaned_data

    def complain(self, errors: Iterable[FieldError]) -> None:
        """Puts each sentence beside the field that its path names, or above the form; one for each field."""
        for error in errors:
            path = error.path
            known = (FIELD_OF_PATH[path[:n]] for n in range(len(path), 0, -1) if path[:n] in FIELD_OF_PATH)
            field = next(known, None)
            if field is None:
                self.add_error(None, f"{'.'.join(path)}: {error.message}")
            elif field not in self.errors:
                variable = f"{path[2]}: " if field == "env" and len(path) > 2 else ""
                self.add_error(field, with_link(replace(error, message=variable + error.message)))

    def fix(self, *names: str) -> None:
        """Makes fields unchangeable: what they are filled with stands, whatever is sent."""
        for name in names:
            self.fields[name].disabled = True

    def first_wrong(self, before: int) -> int:
        """The first step before `before` at which something is wrong; 0 when nothing is."""
        wrong = (n for n, fields in enumerate(FIELDS[: before - 1], 1) if any(name in self.errors for name in fields))
        return next(wrong, 0)

    def fields_at(self, step: int) -> list[forms.BoundField]:
        return [self[name] for name in FIELDS[step - 1]]

    def carried(self, step: int) -> list[forms.BoundField]:
        """Those of the other steps."""
        return [self[name] for name in self.fields if name not in FIELDS[step - 1]]

    def said(self) -> dict[str, str]:
        """What stands in each field."""
        return {name: str(self[name].value() or "") for name in self.fields}

    def summary(self, step: int) -> list[tuple[str, str]]:
        """What was chosen at a step, as people read it; what says nothing is left out."""
        said = self.said()
        silent = {
            "time_limit_unit",
            "idle_after_unit",
            *(["idle_after"] if said["idle_policy"] in ("", "never") or not _tells(said["type"]) else []),
            *(["size"] if said["storage"] != NEW else []),
            *(["output_path"] if not said["output"] else []),
            *(["people"] if said["access"] != "people" else []),
        }
        found = []
        for field in self.fields_at(step):
            value, widget = said[field.name], field.field.widget
            if not value or field.name in silent:
                continue
            if isinstance(widget, forms.Select):
                value = str(dict(widget.choices).get(value, value))
            if field.name == "time_limit":
                value = f"{value} {said['time_limit_unit']}"
            if field.name == "idle_after":
                value = f"{value} {said['idle_after_unit']}"
            if field.name == "idle_policy" and not _tells(said["type"]):
                continue
            found.append((str(field.label), value))
        return found

    @property
    def has_environments(self) -> bool:
        """Whether there is anything to choose, or something that was chosen."""
        return bool(self.offer.environments) or bool(self["environment"].value())

    @property
    def opens_folded(self) -> bool:
        """Whether what most notebooks do not need is said, or needed, or wrong."""
        folded = ("model", "runs", "requirements", "command", "endpoints", "env")
        return self["type"].value() != "jupyter" or any(self[name].value() or name in self.errors for name in folded)

    def _choose(self, name: str, choices: list[tuple[str, str]]) -> None:
        """Offers `choices`, and what was typed or filled in even if it is gone by now: nothing typed is lost."""
        value = str(self[name].value() or "")
        if value not in {key for key, _ in choices}:
            choices = [*choices, (value, f"{value.removeprefix(STORE)} (not available)" if value else "Choose")]
        widget = self.fields[name].widget
        assert isinstance(widget, forms.Select)
        widget.choices = choices


def document_of(values: Mapping[str, str]) -> tuple[dict[str, Any], list[FieldError]]:
    """A manifest's dictionary from what stands in the fields, and what could not even be written as one."""
    complaints: list[FieldError] = []
    env: dict[str, Any] = {}
    served: list[dict[str, Any]] = []
    try:
        env = read_env(values["env"])
    except ValueError as error:
        complaints.append(FieldError(("spec", "env"), str(error)))
    try:
        served = read_endpoints(values["endpoints"])
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
    """What stands in the fields of a form that is filled from `manifest`: the inverse of `document_of`."""
    spec = manifest.spec
    unit = next((unit for unit, size in TIME_UNITS.items() if spec.time_limit and spec.time_limit % size == 0), "hours")
    idle_unit = next(unit for unit, size in TIME_UNITS.items() if spec.idle.after % size == 0)
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
        "time_limit": str(spec.time_limit // TIME_UNITS[unit]) if spec.time_limit else "",
        "time_limit_unit": unit,
        "idle_policy": spec.idle.policy,
        "idle_after": str(spec.idle.after // TIME_UNITS[idle_unit]),
        "idle_after_unit": idle_unit,
        "access": spec.access.to,
        "people": ", ".join(spec.access.people),
    }


def words(value: Any) -> list[str]:
    """ "a, b" as a list."""
    return [name for name in re.split(r"[,\s]+", str(value or "")) if name]


def plugin_label(plugin: Plugin, images: Sequence[str]) -> str:
    """ "Archive – downloads folders (over jupyter-4-6)"."""
    said = f" – {plugin.description}" if plugin.description else ""
    return f"{plugin.title}{said}" + (f" (over {', '.join(images)})" if images else "")


def _tells(kind: str) -> bool:
    """Whether anybody knows when an application of the kind is idle."""
    driver = APPLICATIONS.get(kind)
    return driver is not None and bool(driver.idle_signal)


def _idle_of(values: Mapping[str, str]) -> dict[str, Any] | None:
    """None where nothing can be said."""
    if not _tells(values["type"]):
        return None
    policy = values["idle_policy"] or "never"
    after = {} if policy == "never" else {"after": seconds(values["idle_after"], values["idle_after_unit"])}
    return {"policy": policy, **after}


def read_endpoints(text: str) -> list[dict[str, Any]]:
    """`web=8080 | docs=8081/health` as endpoints. Raises ValueError naming the part that is no such thing."""
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
