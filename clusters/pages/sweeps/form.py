"""The form of a new sweep: another way to write its manifest, which judges it. What a trial is comes along as JSON; people write
which parameters differ, how the next points are chosen, and of which number the best is looked for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from django import forms
from django.http import QueryDict

from clusters.pages.raw_text import Words
from clusters.sweeps.manifest import MAX_FOLDS, MAX_NAME, SweepManifest, SweepSpec, in_order, written
from portal.errors import FieldError, Invalid
from portal.limits import refuse_nul
from portal.manifests import parse
from portal.pages.forms import with_link

# Rows of parameters on the page at least, and in all; those that are empty are nothing.
LEAST_ROWS, MOST_ROWS = 3, 50
PARTS = ("name", "type", "low", "high", "step", "log", "values", "when")
FIELD_OF: dict[tuple[str, ...], str] = {
    ("metadata", "name"): "name", ("spec", "template", "command"): "command", ("spec", "goal"): "metric",
    ("spec", "goal", "direction"): "direction",
    **{("spec", name): name for name in ("sampler", "trials", "parallel", "retries", "folds", "seed")},
    ("spec", "oneRun"): "one_run",
    ("spec", "stopEarly"): "min_steps", ("spec", "stopEarly", "factor"): "factor", ("spec", "stopEarly", "brackets"): "brackets",
}  # fmt: skip
_PLAIN = {"autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}
_NUMBER = {"inputmode": "numeric", "autocomplete": "off"}


@dataclass
class ParameterRow:
    """What is typed about one parameter, and what is wrong with it, by part."""

    number: int
    said: dict[str, str]
    wrong: dict[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not any(value for part, value in self.said.items() if part != "type")

    @property
    def errors(self) -> list[str]:
        return list(self.wrong.values())


class SweepForm(forms.Form):
    """After `is_valid()`, `manifest` is what was asked for."""

    use_required_attribute = False

    appcode = Words(widget=forms.HiddenInput())
    template = Words(widget=forms.HiddenInput())
    name = Words(
        label="Name",
        help_text="Lower-case letters, digits and “-”.",
        widget=forms.TextInput(attrs={"maxlength": MAX_NAME, **_PLAIN}),
    )
    command = Words(
        label="Command",
        help_text="Write {name} where a parameter goes. Each is an environment variable of its name, too.",
        widget=forms.Textarea(attrs={"rows": 4, "class": "code", "spellcheck": "false", "autocapitalize": "none"}),
    )
    metric = Words(
        label="Looked for",
        required=False,
        help_text="As the program writes it: a summary's tag, or the name in a line like val_loss = 0.31",
        widget=forms.TextInput(attrs={"class": "code", **_PLAIN}),
    )
    direction = Words(
        label="Better is",
        initial="minimize",
        widget=forms.Select(choices=[("minimize", "lower"), ("maximize", "higher")]),
    )
    sampler = Words(
        label="Next points",
        initial="tpe",
        widget=forms.Select(
            choices=[
                ("tpe", "Nearer to what was good (TPE)"), ("random", "At random"), ("grid", "Every combination (grid)"),
            ]
        ),
    )  # fmt: skip
    trials = Words(
        label="Points",
        initial="20",
        help_text="Of a grid empty for all.",
        widget=forms.TextInput(attrs=_NUMBER),
    )
    parallel = Words(label="At once", initial="2", help_text="Within the quota.", widget=forms.TextInput(attrs=_NUMBER))
    folds = Words(
        label="Folds",
        required=False,
        help_text=f"k-fold: each point is trained so often, 2 to {MAX_FOLDS}, another part of the input held out each time.",
        widget=forms.TextInput(attrs=_NUMBER),
    )
    one_run = Words(
        label="Each trial is",
        required=False,
        help_text="A copy in one run is for many short trials: copies take turns, up to a thousand in a run.",
        widget=forms.Select(choices=[("", "A cluster of its own"), ("on", "A copy in one run")]),
    )
    retries = Words(
        label="Retries",
        initial="0",
        help_text="Of a trial that fails.",
        widget=forms.TextInput(attrs=_NUMBER),
    )

    min_steps = Words(
        label="End early from step",
        required=False,
        help_text="From then on only the best go on (ASHA), by what is told with its step; empty for never.",
        widget=forms.TextInput(attrs=_NUMBER),
    )
    factor = Words(label="Keep one of", initial="3", help_text="Each time.", widget=forms.TextInput(attrs=_NUMBER))
    brackets = Words(
        label="Brackets", initial="1", help_text="Several: Hyperband.", widget=forms.TextInput(attrs=_NUMBER)
    )

    def __init__(
        self,
        data: QueryDict | None = None,
        *,
        initial: Mapping[str, str] | None = None,
        rows: Iterable[dict[str, str]] = (),
    ) -> None:
        super().__init__(data, initial=dict(initial or {}))
        said = _rows_of(data) if data is not None else list(rows)
        # One more than is filled, so that without a script there is room for another.
        room = min(MOST_ROWS, max(LEAST_ROWS, len(said) + 1))
        said += [dict.fromkeys(PARTS, "") | {"type": "float"} for _ in range(room - len(said))]
        self.rows = [ParameterRow(number, each) for number, each in enumerate(said)]
        self.rows_wrong: list[str] = []
        self.manifest: SweepManifest | None = None

    def clean(self) -> dict[str, Any]:
        said = {name: self.cleaned_data.get(name, "") for name in self.fields}
        complaints: list[FieldError] = []
        try:
            template = orjson.loads(said["template"])
            refuse_nul(template)
        except (orjson.JSONDecodeError, Invalid):
            template = None
        if isinstance(template, dict):
            template |= {"command": said["command"], "scheduleAfter": None}
        spec = {
            "template": template,
            "parameters": self._parameters(complaints),
            "goal": {"metric": said["metric"].strip(), "direction": said["direction"]}
            if said["metric"].strip()
            else None,
            "sampler": said["sampler"],
            "trials": said["trials"].strip() or None,
            "parallel": said["parallel"].strip(),
            "retries": said["retries"].strip(),
            "folds": said["folds"].strip() or None,
            "oneRun": bool(said["one_run"]),
            "stopEarly": {
                "minSteps": said["min_steps"].strip(), "factor": said["factor"].strip(), "brackets": said["brackets"].strip(),
            } if said["min_steps"].strip() else None,
        }  # fmt: skip
        body = {"metadata": {"name": said["name"], "appcode": said["appcode"]}, "spec": spec}
        try:
            manifest = parse(SweepManifest, body)
        except Invalid as invalid:
            self.complain([*complaints, *invalid.errors])
        else:
            self.complain(complaints)
            self.manifest = None if complaints else manifest
        return self.cleaned_data

    def complain(self, errors: Iterable[FieldError]) -> None:
        """Each sentence beside the field or in the row of the parameter that its path names; one for each."""
        for error in errors:
            path = error.path
            if path[:2] == ("spec", "parameters"):
                self._complain_of_row(path[2:], error.message)
                continue
            name = next((FIELD_OF[path[:n]] for n in range(len(path), 0, -1) if path[:n] in FIELD_OF), None)
            if name is None:
                what = f"{'.'.join(path[2:])} of a trial" if path[:2] == ("spec", "template") else ".".join(path)
                self.add_error(None, f"{what}: {error.message}")
            elif name not in self.errors:
                self.add_error(name, with_link(error))

    def _complain_of_row(self, path: tuple[str, ...], message: str) -> None:
        row = next((each for each in self.rows if path and each.said["name"].strip()[:60] == path[0]), None)
        if path and path[0].startswith("#"):
            row = self.rows[int(path[0][1:])]
        if row is None:
            self.rows_wrong.append(message)
        else:
            row.wrong.setdefault(next((part for part in path[1:2] if part in PARTS), "name"), message)
        self.errors.setdefault("parameters", self.error_class([message]))

    def _parameters(self, complaints: list[FieldError]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for row in self.rows:
            name = row.said["name"].strip()
            if row.is_empty:
                continue
            if not name or name in found:
                sentence = "Fill in its name." if not name else "There are two of this name."
                complaints.append(FieldError(("spec", "parameters", f"#{row.number}", "name"), sentence))
                continue
            try:
                found[name] = parameter_of(row.said)
            except ValueError as error:
                complaints.append(FieldError(("spec", "parameters", name, "when"), str(error)))
        return found


def parameter_of(said: Mapping[str, str]) -> dict[str, Any]:
    """A parameter as a manifest has it; what is no number goes on as it is, to be refused by that. Raises ValueError for a
    condition that is none."""
    found: dict[str, Any] = {"type": said["type"]}
    if said["type"] == "choice":
        found["values"] = [literal(part.strip()) for part in said["values"].split(",") if part.strip()]
    else:
        found |= {part: literal(said[part].strip()) for part in ("low", "high", "step") if said[part].strip()}
        found["log"] = bool(said["log"])
    if said["when"].strip():
        found["when"] = {}
        for part in said["when"].split(";"):
            name, equals, values = part.partition("=")
            if not equals:
                raise ValueError("Write NAME = VALUE, for example optimizer = sgd, adam; divide several by “;”.")
            found["when"][name.strip()] = [literal(each.strip()) for each in values.split(",") if each.strip()]
    return found


def literal(text: str) -> str | int | float | bool:
    """3 and 0.5 as numbers, true and false as what they are, all else as text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | float | bool) else text


def rows_of(spec: SweepSpec) -> list[dict[str, str]]:
    """What stands in the rows of a form that is filled from a sweep."""
    return [
        {
            "name": name,
            "type": each.type,
            **{
                part: "" if getattr(each, part) is None else written(getattr(each, part))
                for part in ("low", "high", "step")
            },
            "log": "on" if each.log else "",
            "values": ", ".join(map(written, each.values)),
            "when": "; ".join(f"{other} = {', '.join(map(written, values))}" for other, values in each.when.items()),
        }
        for name, each in in_order(spec.parameters)
    ]


def fields_of(name: str, appcode: str, spec: SweepSpec) -> dict[str, str]:
    return {
        "name": name,
        "appcode": appcode,
        "template": spec.template.model_dump_json(by_alias=True),
        "command": spec.template.command,
        "metric": spec.goal.metric if spec.goal else "",
        "direction": spec.goal.direction if spec.goal else "minimize",
        "sampler": spec.sampler,
        "trials": str(spec.trials or ""),
        "parallel": str(spec.parallel),
        "folds": str(spec.folds or ""),
        "retries": str(spec.retries),
        "one_run": "on" if spec.one_run else "",
        "min_steps": str(spec.stop_early.min_steps) if spec.stop_early else "",
        "factor": str(spec.stop_early.factor if spec.stop_early else 3),
        "brackets": str(spec.stop_early.brackets if spec.stop_early else 1),
    }


def _rows_of(data: QueryDict) -> list[dict[str, str]]:
    """Those that say something, in their order."""
    found = []
    for number in range(MOST_ROWS):
        said = {part: data.get(f"parameter-{number}-{part}", "").replace("\0", "")[:4000] for part in PARTS}
        if any(value for part, value in said.items() if part != "type"):
            found.append(said)
    return found
