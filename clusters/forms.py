"""The New Cluster form: another way to write a cluster manifest, and a way to fill it from one.

The form judges nothing itself. It turns what was typed into a manifest's dictionary, lets `ClusterManifest` (and later the
action) say what is wrong, and puts each sentence beside the field that its path names. So the form and REST accept and
refuse the same things, in the same words. `fields_of` is the inverse: every manifest survives form → POST → manifest, except
for carriage returns in a command, which no browser sends.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from django import forms
from django.db.models import QuerySet
from pydantic import ValidationError

from clusters.models import LOCAL, Flavor, Image
from clusters.places import THIS_MACHINE, place_of
from clusters.specs import ROLES, ClusterManifest, ClusterSpec, RoleName, format_env, parse_env
from datastores.models import Datastore
from portal.errors import FieldError, Invalid
from portal.manifests import errors_by_path
from portal.models import Appcode

# Largest first: a filled form shows the largest unit that leaves a whole number.
TIME_UNITS = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}

MAX_IMPORT = 100
MAX_IMPORT_BYTES = 1024 * 1024

FIELD_OF_PATH: dict[tuple[str, ...], str] = {
    ("metadata", "appcode"): "appcode",
    ("metadata", "name"): "name",
    ("spec", "image"): "image",
    ("spec", "input"): "input",
    ("spec", "output"): "output",
    ("spec", "outputPath"): "output_path",
    ("spec", "command"): "command",
    ("spec", "env"): "env",
    ("spec", "framework"): "framework",
    ("spec", "mode"): "mode",
    ("spec", "completion"): "completion",
    ("spec", "retries"): "retries",
    ("spec", "timeLimit"): "time_limit",
    ("spec", "scheduleAfter"): "schedule_after",
    **{("spec", "roles", role): f"{role}_flavor" for role in ROLES},
    **{("spec", "roles", role, "count"): f"{role}_count" for role in ROLES if role != "master"},
}
FOLDED = (
    "framework", "mode", "completion", "retries", "time_limit", "time_limit_unit", "schedule_after", "output_path",
    "evaluator_flavor", "evaluator_count",
)  # fmt: skip

# Pydantic's own sentences, in the portal's words.
POLITE = {
    "Field required": "This is needed.",
    "String should have at least 1 character": "This is needed.",
    "Input should be a valid integer, unable to parse string as an integer": "Give a whole number.",
}

LIMIT = re.compile(
    r"(Input should be (less|greater) than or equal to|String should have at (most|least)) (?P<number>\d+)"
    r"(?P<what> characters?)?"
)


class Words(forms.CharField):
    """Text exactly as typed, nothing stripped or judged; line ends as programs write them, not as browsers send them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(strip=False, **options)

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value)
        return text.replace("\r\n", "\n") if isinstance(text, str) else text

    def validate(self, value: Any) -> None:
        """`required` only says whether the label calls the field optional."""


def _choice(**options: Any) -> Words:
    return Words(widget=forms.Select(), **options)


def _count(role: str) -> Words:
    widget = forms.NumberInput(attrs={"min": 0, "step": 1, "inputmode": "numeric", "aria-label": f"How many {role}s"})
    return Words(label="Count", initial="0", widget=widget, required=True)


def _flavor(label: str, **options: Any) -> Words:
    return Words(label=label, widget=forms.Select(), **options)


class ClusterForm(forms.Form):
    """Fields in the order in which people fill them. After `is_valid()`, `manifest` is what was asked for."""

    use_required_attribute = False

    appcode = _choice(label="Appcode", help_text="Who pays.")
    name = Words(
        label="Name",
        help_text="Lower-case letters, digits and “-”.",
        widget=forms.TextInput(
            attrs={"autocomplete": "off", "spellcheck": "false", "autocapitalize": "none", "maxlength": 63}
        ),
    )
    image = _choice(label="Image")
    input = _choice(label="Input", required=False, help_text="mounted at /elearn/input")
    output = _choice(label="Output", required=False, help_text="mounted at /elearn/output")
    command = Words(
        label="Command",
        help_text="appended after bash -c",
        widget=forms.Textarea(attrs={"rows": 4, "class": "code", "spellcheck": "false", "autocapitalize": "none"}),
    )
    env = Words(
        label="Env",
        required=False,
        help_text="multiple envs are divided by |, e.g. PYTHONPATH=/demo | DATA_DIR=/elearn/output",
        widget=forms.Textarea(attrs={"rows": 2, "class": "code", "spellcheck": "false", "autocapitalize": "none"}),
    )
    master_flavor = _flavor("Master")
    ps_flavor = _flavor("Parameter server", required=False)
    ps_count = _count("parameter server")
    worker_flavor = _flavor("Worker", required=False)
    worker_count = _count("worker")

    framework = _choice(label="Framework", initial="tensorflow")
    mode = _choice(
        label="Mode", initial="batch", help_text="A batch run ends; a service is kept alive until it is disabled."
    )
    completion = _choice(
        label="Completion", initial="master", help_text="Then parameter servers end and GPUs are free again."
    )
    retries = Words(
        label="Retries",
        initial="1",
        help_text="How often one task may fail and be started again.",
        widget=forms.NumberInput(attrs={"min": 0, "max": 10, "step": 1, "inputmode": "numeric"}),
    )
    time_limit = Words(
        label="Time limit",
        required=False,
        help_text="The run is stopped after this long.",
        widget=forms.TextInput(attrs={"inputmode": "numeric", "autocomplete": "off"}),
    )
    time_limit_unit = Words(
        label="Unit",
        initial="hours",
        widget=forms.Select(
            choices=[(unit, unit) for unit in reversed(TIME_UNITS)], attrs={"aria-label": "Unit of the time limit"}
        ),
    )
    schedule_after = Words(
        label="Schedule after (UTC)",
        required=False,
        help_text="The first deployment waits until this time.",
        widget=forms.DateTimeInput(attrs={"type": "datetime-local", "step": 1}),
    )
    output_path = Words(
        label="Output folder",
        required=False,
        initial="{name}/{run}",
        help_text="Inside the output datastore; {name} and {run} are filled in. Without {run}, all runs share the folder.",
        widget=forms.TextInput(
            attrs={"class": "code", "autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}
        ),
    )
    evaluator_flavor = _flavor("Evaluator", required=False, help_text="Tests checkpoints while the others train.")
    evaluator_count = _count("evaluator")

    def __init__(self, offer: Offer, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.manifest: ClusterManifest | None = None
        self.offer = offer
        for name, choices in offer.choices().items():
            self._choose(name, choices)
        schedule = self["schedule_after"].value()
        if schedule and not _fits_datetime_local(schedule):
            self.fields["schedule_after"].widget = forms.TextInput()

    def clean(self) -> dict[str, Any]:
        values = {name: self.cleaned_data.get(name, "") for name in self.fields}
        document, complaints = manifest_of(values)
        try:
            self.manifest = ClusterManifest.model_validate(document)
        except ValidationError as error:
            complaints += [
                FieldError(*each) for each in errors_by_path(error.errors(include_url=False, include_input=False))
            ]
        if complaints:
            self.manifest = None
            self.complain(complaints)
        return self.cleaned_data

    def complain(self, errors: Iterable[FieldError]) -> None:
        """Puts each sentence beside the field that its path names, or above the form; one for each field."""
        for error in errors:
            field = field_of(error.path)
            if field is None:
                self.add_error(None, f"{'.'.join(error.path)}: {polite(error.message)}")
            elif field not in self.errors:
                variable = f"{error.path[2]}: " if field == "env" and len(error.path) > 2 else ""
                self.add_error(field, variable + polite(error.message))

    def fix(self, *names: str) -> None:
        """Makes fields unchangeable: what they are filled with stands, whatever is sent."""
        for name in names:
            self.fields[name].disabled = True

    def with_stand_ins(self, stand_ins: Mapping[str, str]) -> ClusterManifest | None:
        """The manifest that it would be with other values in some fields; None when it is wrong all the same."""
        document, complaints = manifest_of(
            {name: self.cleaned_data.get(name, "") for name in self.fields} | dict(stand_ins)
        )
        try:
            return None if complaints else ClusterManifest.model_validate(document)
        except ValidationError:
            return None

    @property
    def opens_folded(self) -> bool:
        """Whether something that is folded away was changed or is wrong."""
        return any(
            name in self.errors or str(self[name].value() or "") != str(ClusterForm.base_fields[name].initial or "")
            for name in FOLDED
            if name != "time_limit_unit"
        )

    def _choose(self, name: str, choices: list[tuple[str, str]]) -> None:
        """Offers `choices`, and what was typed or filled in even if it is gone by now: nothing typed is lost."""
        value = str(self[name].value() or "")
        if value not in {key for key, _ in choices}:
            choices = [*choices, (value, f"{value} (not available)" if value else "Choose")]
        widget = self.fields[name].widget
        assert isinstance(widget, forms.Select)
        widget.choices = choices


@dataclass(frozen=True)
class Offer:
    """What the form lets people choose from. `appcode` is the one whose datastores are offered, and whose runs are made on
    `cloud`, which people call `cloud_title`."""

    appcodes: list[Appcode]
    appcode: str
    images: list[Image]
    flavors: list[Flavor]
    datastores: list[Datastore]
    cloud: str = LOCAL
    cloud_title: str = THIS_MACHINE

    @classmethod
    def make(cls, appcodes: QuerySet[Appcode], appcode: str, datastores: QuerySet[Datastore]) -> Offer:
        """`appcodes` are those where the person may create; `datastores` those that they may see."""
        codes = list(appcodes.filter(state=Appcode.State.ACTIVE))
        known = [each.code for each in codes]
        chosen = appcode if appcode in known else (known[0] if known else "")
        try:
            place = place_of(codes[known.index(chosen)]) if chosen else None
        except Invalid:
            # The preview says why.
            place = None
        return cls(
            codes,
            chosen,
            list(Image.objects.filter(enabled=True)),
            list(Flavor.objects.filter(enabled=True)),
            list(datastores.filter(appcode__code=chosen)),
            *((place.cloud, place.title) if place else ()),
        )

    def defaults(self) -> dict[str, str]:
        """What most people would choose first, so that cost and fit are told at once: the first that can run here."""
        image = next((image.name for image in self.images if image.runs_on(self.cloud)), "")
        return {"appcode": self.appcode, "image": image, "master_flavor": self.flavors[0].name if self.flavors else ""}

    def choices(self) -> dict[str, list[tuple[str, str]]]:
        flavors = [(flavor.name, flavor_label(flavor)) for flavor in self.flavors]
        stores = [
            ("", "none"),
            *((store.name, f"{store.name} ({store.get_kind_display()})") for store in self.datastores),
        ]
        images = [
            (image.name, image.title if image.runs_on(self.cloud) else f"{image.title} (not on {self.cloud_title})")
            for image in self.images
        ]
        return {
            "appcode": [
                (each.code, each.code if each.name == each.code else f"{each.code} – {each.name}")
                for each in self.appcodes
            ],
            "image": images,
            "input": stores,
            "output": stores,
            "master_flavor": flavors,
            **{f"{role}_flavor": [("", "none"), *flavors] for role in ("ps", "worker", "evaluator")},
            "framework": [("tensorflow", "TensorFlow"), ("pytorch", "PyTorch")],
            "mode": [("batch", "Batch"), ("service", "Service")],
            "completion": [("master", "when the master has finished"), ("workers", "when all workers have finished")],
        }


class ImportForm(forms.Form):
    """Manifests as a file or pasted; `text` is what came."""

    use_required_attribute = False

    file = forms.FileField(
        label="File",
        required=False,
        help_text="A JSON file with one manifest, or with several, as Export writes them.",
        widget=forms.ClearableFileInput(attrs={"accept": ".json,application/json"}),
    )
    manifest = Words(
        label="Or paste it",
        required=False,
        widget=forms.Textarea(
            attrs={"rows": 12, "class": "code", "spellcheck": "false", "placeholder": '{"kind": "cluster", …}'}
        ),
    )

    def clean(self) -> dict[str, Any]:
        file = self.cleaned_data.get("file")
        self.text = self.cleaned_data.get("manifest") or ""
        if file is not None:
            if file.size > MAX_IMPORT_BYTES:
                self.add_error("file", "The file is larger than 1 MiB.")
                return self.cleaned_data
            try:
                self.text = file.read().decode("utf-8-sig")
            except UnicodeDecodeError:
                self.add_error("file", "This is not a text file in UTF-8.")
        elif not self.text.strip() and not self.errors:
            self.add_error("manifest", "Choose a file or paste a manifest.")
        return self.cleaned_data

    def complain(self, errors: Iterable[FieldError]) -> None:
        field = "file" if self.cleaned_data.get("file") else "manifest"
        for error in errors:
            self.add_error(
                field, f"{'.'.join(error.path)}: {polite(error.message)}" if error.path else polite(error.message)
            )


def flavor_label(flavor: Flavor) -> str:
    """ "Middle + 1 GPU · 4 cores, 16 GiB"."""
    cores = f"{flavor.cpu_milli / 1000:g}"
    return f"{flavor.title} · {cores} {'core' if cores == '1' else 'cores'}, {flavor.memory_mb / 1024:.3g} GiB"


def manifest_of(values: Mapping[str, str]) -> tuple[dict[str, Any], list[FieldError]]:
    """A manifest's dictionary from what stands in the fields, and what could not even be written as one (an env without "=")."""
    complaints: list[FieldError] = []
    try:
        env = read_env(values.get("env", ""))
    except ValueError as error:
        env = {}
        complaints.append(FieldError(("spec", "env"), str(error)))
    spec: dict[str, Any] = {
        "framework": values.get("framework") or "tensorflow",
        "image": values.get("image", ""),
        "command": values.get("command", ""),
        "env": env,
        "input": values.get("input") or None,
        "output": values.get("output") or None,
        "outputPath": values.get("output_path", ""),
        "mode": values.get("mode") or "batch",
        "roles": _roles(values),
        "completion": values.get("completion") or "master",
        "retries": values.get("retries", ""),
        "timeLimit": _seconds(values.get("time_limit", ""), values.get("time_limit_unit", "")),
        "scheduleAfter": _utc(values.get("schedule_after", "")),
    }
    metadata = {"name": values.get("name", ""), "appcode": values.get("appcode", "")}
    return {"kind": "cluster", "metadata": metadata, "spec": spec}, complaints


def fields_of(manifest: ClusterManifest) -> dict[str, str]:
    """What stands in the fields of a form that is filled from `manifest`: the inverse of `manifest_of`."""
    spec = manifest.spec
    unit = next((unit for unit, size in TIME_UNITS.items() if spec.time_limit and spec.time_limit % size == 0), "hours")
    fields = {
        "appcode": manifest.metadata.appcode,
        "name": manifest.metadata.name,
        "image": spec.image,
        "input": spec.input or "",
        "output": spec.output or "",
        "command": spec.command,
        "env": write_env(spec.env),
        "framework": spec.framework,
        "mode": spec.mode,
        "completion": spec.completion,
        "retries": str(spec.retries),
        "time_limit": str(spec.time_limit // TIME_UNITS[unit]) if spec.time_limit else "",
        "time_limit_unit": unit,
        "schedule_after": _local(spec.schedule_after),
        "output_path": spec.output_path,
    }
    for role in ROLES:
        role_spec = spec.roles.get(role)
        fields[f"{role}_flavor"] = role_spec.flavor if role_spec else ""
        if role != "master":
            fields[f"{role}_count"] = str(role_spec.count if role_spec else 0)
    return fields


def read_manifests(text: str) -> list[ClusterManifest]:
    """The manifests in `text`: one, a list of them, or {"kind": "List", "items": […]}, as Export writes.

    Raises Invalid; the path begins with the number of the manifest when there are several.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Invalid.at(
            message=f"This is not JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from error
    if isinstance(value, dict) and value.get("kind") == "List":
        value = value.get("items")
    documents = value if isinstance(value, list) else [value]
    if not documents or len(documents) > MAX_IMPORT:
        raise Invalid.at(message=f"Give 1 to {MAX_IMPORT} manifests at one time.")
    manifests: list[ClusterManifest] = []
    errors: list[FieldError] = []
    for number, document in enumerate(documents):
        where = (f"manifest {number + 1}",) if len(documents) > 1 else ()
        try:
            manifests.append(ClusterManifest.model_validate(document))
        except ValidationError as error:
            errors += [
                FieldError((*where, *path), polite(message))
                for path, message in errors_by_path(error.errors(include_url=False, include_input=False))
            ]
    if errors:
        raise Invalid(errors)
    return manifests


def field_of(path: tuple[str, ...]) -> str | None:
    """The form's field for a path in the manifest: the longest beginning of the path that has one; None when there is none."""
    return next((FIELD_OF_PATH[path[:n]] for n in range(len(path), 0, -1) if path[:n] in FIELD_OF_PATH), None)


def polite(message: str) -> str:
    """Pydantic's sentence in the portal's words; ours as they are."""
    if message in POLITE:
        return POLITE[message]
    if limit := LIMIT.fullmatch(message):
        most = "less" in message or "at most" in message
        return f"At {'most' if most else 'least'} {limit['number']}{limit['what'] or ''}."
    return message if message.endswith((".", "!", "?")) else f"{message}."


def short_document(manifest: ClusterManifest) -> dict[str, Any]:
    """The manifest as people would write it: without what is the default anyway."""
    document = manifest.model_dump(mode="json", by_alias=True)
    defaults = ClusterSpec.model_fields
    spec = {}
    for name, field in defaults.items():
        key = field.alias or name
        if field.is_required() or getattr(manifest.spec, name) != field.get_default(call_default_factory=True):
            spec[key] = document["spec"][key]
    return {**document, "spec": spec}


def read_env(text: str) -> dict[str, Any]:
    """`A=1 | B=2`, or a JSON object for values that this cannot say (such as spaces at their ends). Raises ValueError."""
    if text.lstrip().startswith("{"):
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise ValueError(
                f"It begins with “{{” but is not a JSON object: {error.msg}, at character {error.pos}."
            ) from error
        assert isinstance(value, dict)
        return value
    return dict(parse_env(text))


def write_env(env: Mapping[str, str]) -> str:
    """The inverse of `read_env`, in its simpler form wherever that is exact."""
    text = format_env(dict(env))
    try:
        exact = "\r" not in text and parse_env(text) == env and not text.lstrip().startswith("{")
    except ValueError:
        exact = False
    return text if exact else json.dumps(env, ensure_ascii=True)


def _roles(values: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """A role that has neither a flavor nor tasks is not there."""
    roles: dict[str, dict[str, Any]] = {"master": {"flavor": values.get("master_flavor", ""), "count": 1}}
    others: tuple[RoleName, ...] = ("ps", "worker", "evaluator")
    for role in others:
        flavor, count = values.get(f"{role}_flavor", ""), values.get(f"{role}_count", "").strip() or "0"
        if flavor or count != "0":
            roles[role] = {"flavor": flavor, "count": count}
    return roles


def _seconds(number: str, unit: str) -> str | int | None:
    """Seconds; what is no number goes on as it is, to be refused by the manifest."""
    text = number.strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text) * TIME_UNITS.get(unit, 3600)
    return text or None


def _utc(text: str) -> str | None:
    """A time without a zone, as datetime-local gives it, is UTC; what is no time goes on as it is."""
    text = text.strip()
    if not text:
        return None
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        return text
    return (time if time.tzinfo else time.replace(tzinfo=dt.UTC)).isoformat()


def _local(time: dt.datetime | None) -> str:
    if time is None:
        return ""
    try:
        return time.astimezone(dt.UTC).replace(tzinfo=None).isoformat()
    except OverflowError:  # the first and the last day that dates know
        return time.isoformat()


def _fits_datetime_local(text: str) -> bool:
    """Whether a browser's field of type datetime-local can hold `text` (four-digit years, whole seconds)."""
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        return False
    return time.tzinfo is None and time.microsecond == 0 and time.year >= 1000
