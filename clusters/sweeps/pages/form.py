"""The form of a new sweep: another way to write its manifest, which validates it. The trial's template is carried as
JSON; users enter the parameters, the sampler, and the metric to optimize."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from django import forms
from django.http import QueryDict

from clusters.frame.form import ManifestForm, area, choice, line, number
from clusters.frame.raw_text import Words
from clusters.sweeps.manifest import MAX_FOLDS, MAX_NAME, SweepManifest, SweepSpec
from clusters.sweeps.parameters import in_order, written
from portal.errors import FieldError, Invalid
from portal.web.limits import refuse_nul

# Minimum and maximum rows of parameters on the page; empty rows are ignored.
LEAST_ROWS, MOST_ROWS = 3, 50
PARTS = ("name", "type", "low", "high", "step", "log", "values", "when")
FIELD_OF = {
    "metadata.name": "name", "spec.template.command": "command", "spec.goal": "metric", "spec.goal.direction": "direction",
    **{f"spec.{name}": name for name in ("sampler", "seed", "trials", "parallel", "retries", "folds")},
    "spec.oneRun": "one_run", "spec.stopEarly": "min_steps", "spec.stopEarly.factor": "factor",
    "spec.stopEarly.brackets": "brackets",
}  # fmt: skip
SAMPLERS = (("tpe", "Bayesian (TPE)"), ("random", "Random"), ("grid", "Grid: every combination"))
# Fields below “Advanced”, which is open when one of them says something else than this.
ADVANCED = {"seed": "0", "retries": "0", "folds": "", "one_run": "", "min_steps": "", "factor": "3", "brackets": "1"}


@dataclass
class ParameterRow:
    """The typed values of one parameter, and its errors by part."""

    number: int
    said: dict[str, str]
    wrong: dict[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not any(value for part, value in self.said.items() if part != "type")

    @property
    def errors(self) -> list[str]:
        return list(self.wrong.values())


class SweepForm(ManifestForm[SweepManifest]):
    manifest_class = SweepManifest
    paths = FIELD_OF

    appcode = Words(widget=forms.HiddenInput())
    template = Words(widget=forms.HiddenInput())
    name = line("Name", "Lower-case letters, digits and “-”.", maxlength=MAX_NAME)
    command = area("Command", "{name} stands for the value of a parameter.", rows=3)
    metric = line(
        "Metric",
        "A tag of TensorBoard, a column of a table of metrics, or a name in the log: val_loss = 0.31",
        required=False,
        code=True,
        list="metrics",
    )
    direction = choice("Direction", choices=[("minimize", "Minimize"), ("maximize", "Maximize")], initial="minimize")
    sampler = choice("Method", choices=SAMPLERS, initial="tpe")
    trials = number("Trials", "Grid: empty for all.", initial="20")
    parallel = number("Parallel", "Trials at a time.", initial="2")
    seed = number("Random seed", "Of the search.", initial="0")
    retries = number("Retries", "Per failed trial.", initial="0")
    folds = number(
        "Folds",
        f"k-fold cross-validation: each trial runs 2 to {MAX_FOLDS} times, each time with another fold of the input held out.",
        required=False,
    )
    one_run = choice(
        "Run each trial as",
        "For many short trials: up to 1,000 copies share one run and take turns.",
        [("", "Its own cluster"), ("on", "A copy in one run")],
        required=False,
    )
    min_steps = number(
        "Early stopping (ASHA) from step",
        "Stops trials that are behind the others. The program reports its metric with the step.",
        required=False,
    )
    factor = number("Reduction factor", "3 keeps the best third.", initial="3")
    brackets = number("Brackets", "2 or more: Hyperband.", initial="1")
    # APPCODE/CLUSTER from which the form was filled.
    source = Words(widget=forms.HiddenInput(), required=False)

    def __init__(
        self,
        data: QueryDict | None = None,
        *,
        initial: Mapping[str, str] | None = None,
        rows: Iterable[dict[str, str]] = (),
    ) -> None:
        super().__init__(data, initial=dict(initial or {}))
        said = _rows_of(data) if data is not None else list(rows)
        # One more than filled, so that without a script there is room for another.
        room = min(MOST_ROWS, max(LEAST_ROWS, len(said) + 1))
        said += [dict.fromkeys(PARTS, "") | {"type": "float"} for _ in range(room - len(said))]
        self.rows = [ParameterRow(number, each) for number, each in enumerate(said)]
        self.rows_wrong: list[str] = []

    @property
    def opens_advanced(self) -> bool:
        said = self.said()
        return any(said[name].strip() != usual or name in self.errors for name, usual in ADVANCED.items())

    @property
    def mistakes(self) -> list[tuple[str, str]]:
        """All errors, each with the label of its field."""
        labels = {name: str(each.label) for name, each in self.fields.items() if each.label}
        labels |= {"parameters": "Parameters"}
        return [(labels.get(name, ""), str(each)) for name, those in self.errors.items() for each in those]

    def document(self, said: Mapping[str, str]) -> tuple[dict[str, Any], list[FieldError]]:
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
            "seed": said["seed"].strip(),
            "trials": said["trials"].strip() or None,
            "parallel": said["parallel"].strip(),
            "retries": said["retries"].strip(),
            "folds": said["folds"].strip() or None,
            "oneRun": bool(said["one_run"]),
            "stopEarly": {
                "minSteps": said["min_steps"].strip(), "factor": said["factor"].strip(), "brackets": said["brackets"].strip(),
            } if said["min_steps"].strip() else None,
        }  # fmt: skip
        return {"metadata": {"name": said["name"], "appcode": said["appcode"]}, "spec": spec}, complaints

    def complain(self, errors: Iterable[FieldError]) -> None:
        """Puts each error beside the field or parameter row that its path names. Only the first error of each is shown."""
        for error in errors:
            path = error.path
            if path[:2] == ("spec", "parameters"):
                self._complain_of_row(path[2:], error.message)
            elif path[:2] == ("spec", "template") and self.field_at(path) is None:
                self.add_error(None, f"{'.'.join(path[2:])} of a trial: {error.message}")
            else:
                super().complain([error])

    def _complain_of_row(self, path: tuple[str, ...], message: str) -> None:
        row = next((each for each in self.rows if path and each.said["name"].strip()[:60] == path[0]), None)
        if path and path[0].startswith("#"):
            row = self.rows[int(path[0][1:])]
        if row is None:
            message = "Add a parameter." if all(each.is_empty for each in self.rows) else message
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
    """A parameter for a manifest, which refuses the invalid numbers passed on as text. Raises ValueError for a bad condition."""
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
    """Parses 3 and 0.5 as numbers, true and false as booleans, all else as text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | float | bool) else text


def rows_of(spec: SweepSpec) -> list[dict[str, str]]:
    """Row values for the parameters of a sweep."""
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
        "seed": str(spec.seed),
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
    """The rows that are not empty, in order."""
    found = []
    for place in range(MOST_ROWS):
        said = {part: data.get(f"parameter-{place}-{part}", "").replace("\0", "")[:4000] for part in PARTS}
        if any(value for part, value in said.items() if part != "type"):
            found.append(said)
    return found
