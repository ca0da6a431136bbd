"""The definition of a sweep: one trial, the parameters that differ between trials, and how the next ones are chosen. Pure.

The idea: a parameter reaches the program as an environment variable of its name, in place of the template's own, and replaces
`{name}` in the command or in a variable's value. In a command it is a number, or text of characters that no shell interprets. So
the author of the sweep writes the command, and no value can change it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from clusters.frameworks import COMPUTING, FRAMEWORKS, variables
from clusters.manifest.cluster import MAX_NAME as CLUSTER_NAME
from clusters.manifest.cluster import ClusterSpec
from clusters.manifest.env import check_env_name
from clusters.manifest.input import STREAM_ENV
from clusters.sweeps.parameters import MAX_PARAMETERS, MAX_TRIALS, Parameter, Value, grid_size, written
from portal.manifests import AppcodeName, Manifest, Strict, dns_label, field_error
from portal.manifests.kept import MAY_CHANGE, Kept

# A trial's cluster is named <sweep>-<number>-<fold>, and cluster names have at most 40 characters.
MAX_NAME = 30
MAX_PARALLEL = 200
# Values of all choices together for TPE, which weighs each against each trial within a turn of the loop.
MAX_WEIGHED = 1000
MAX_FOLDS = 20
# Read-only variables of bash, which a table of points cannot set.
READ_ONLY = frozenset({"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"})
# Characters that every shell takes literally, however they are quoted.
PLAIN = re.compile(r"[A-Za-z0-9_./:@%+,=-]*")

Sampler = Literal["grid", "random", "tpe"]


def _metric(value: str) -> str:
    if not re.fullmatch(r"[^\s\0](?:[^\0\r\n]*[^\s\0])?", value):
        raise ValueError("Name it as the program does, without spaces around it.")
    return value


SweepName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME), AfterValidator(dns_label)]


class Goal(Strict):
    """The number to optimize: the last value of a summary in event files, or of the program's printed output."""

    metric: Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(_metric)] = Field(
        examples=["val_loss"],
        description="A tag of a summary, or the name in a printed line like `val_loss = 0.31`. Where several folders of event "
        "files have the tag, FOLDER/TAG: validation/epoch_loss.",
    )
    direction: Literal["minimize", "maximize"] = "minimize"


class StopEarly(Strict):
    """Ends trials that are behind others at the same step: only the best one in `factor` goes on (asynchronous successive
    halving, ASHA). With several brackets it is Hyperband: later brackets compare later, for trials that start slowly."""

    min_steps: int = Field(ge=1, le=10**9, description="Steps, as the program counts them, before any is ended.")
    factor: int = Field(default=3, ge=2, le=10)
    brackets: int = Field(default=1, ge=1, le=8)


class SweepSpec(Strict):
    """A template of one trial, its parameters, and `trials`, the number of points; with `folds`, each is trained that often."""

    template: ClusterSpec = Field(description="The cluster that each trial is.")
    parameters: dict[str, Parameter] = Field(min_length=1, max_length=MAX_PARAMETERS)
    goal: Goal | None = Field(default=None, description="Without it, no trial is better than another.")
    sampler: Sampler = Field(
        default="random",
        description="grid: every combination, in order; random; tpe: nearer to what was good (Tree-structured Parzen Estimator).",
    )
    seed: int = Field(default=0, ge=0, le=2**31 - 1, description="Another one chooses other points.")
    trials: Annotated[int | None, MAY_CHANGE] = Field(
        default=None, ge=1, le=MAX_TRIALS, description="Points; of a grid all where it is left out."
    )
    parallel: Annotated[int, MAY_CHANGE] = Field(
        default=1,
        ge=1,
        le=MAX_PARALLEL,
        description="So many clusters at once, at most; the quota holds for them, too.",
    )
    retries: Annotated[int, MAY_CHANGE] = Field(
        default=0,
        ge=0,
        le=10,
        description="How often the run of a failed trial is started anew before the trial counts as failed.",
    )
    stop_early: StopEarly | None = Field(
        default=None, description="Needs a metric that is told with its step while the program runs."
    )
    folds: int | None = Field(
        default=None,
        ge=2,
        le=MAX_FOLDS,
        description="k-fold: each point is trained so many times, each time with another fold of the input held out, and its "
        "value is their mean.",
    )
    one_run: bool = Field(
        default=False,
        description="Trials are copies of one command in one run, which take turns, and no clusters of their own. Of the "
        "framework `parallel` with one worker.",
    )

    @field_validator("parameters")
    @classmethod
    def _named(cls, value: dict[str, Parameter]) -> dict[str, Parameter]:
        for name in value:
            try:
                check_env_name(name)
            except ValueError as error:
                raise field_error(str(error), name[:60]) from error
            if len(name) > 60:
                raise field_error("A name has at most 60 characters.", name[:60])
        return value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self._check_template()
        for name, parameter in self.parameters.items():
            self._check_place(name, parameter)
            self._check_when(name, parameter)
        if self.sampler == "tpe" and self.goal is None:
            raise field_error("TPE needs a metric to optimize.", "goal")
        if self.sampler == "tpe" and sum(len(each.values) for each in self.parameters.values()) > MAX_WEIGHED:
            raise field_error(
                f"TPE weighs each value against each trial: all choices together have at most {MAX_WEIGHED:,} values. "
                "Take fewer, numbers from low to high, or the sampler random.",
                "parameters",
            )
        if self.stop_early and self.goal is None:
            raise field_error("Early stopping needs a metric to compare trials by.", "goal")
        if self.stop_early and self.folds:
            raise field_error(
                "Early stopping does not work with folds: their mean is known only when all have ended.", "stopEarly"
            )
        self._check_folds()
        self._check_count()
        if self.one_run:
            self._check_one_run()
        return self

    def _check_template(self) -> None:
        template = self.template
        if template.framework not in COMPUTING:
            raise field_error("A trial comes to an end; an application does not.", "template", "framework")
        if template.mode != "batch":
            raise field_error("A trial comes to an end, and a service does not; choose 'batch'.", "template", "mode")
        if template.schedule_after is not None:
            raise field_error("Trials start one after the other; leave this out.", "template", "scheduleAfter")

    def _check_place(self, name: str, parameter: Parameter) -> None:
        template = self.template
        framework = FRAMEWORKS[template.framework]
        streamed = STREAM_ENV if template.input and template.input.mode == "stream" else frozenset()
        if name in framework.reserved_env | streamed:
            raise field_error(f"{name} is set by the portal; choose another name.", "parameters", name)
        if name not in template.env and not any(re.search(rf"\b{name}\b", text) for text in self._texts()):
            raise field_error(
                f"Nothing reads it: write {{{name}}} or ${name} into the command, or make {name} a variable of the cluster.",
                "parameters",
                name,
            )
        if f"{{{name}}}" in template.command:
            for text in map(written, parameter.values):
                if not PLAIN.fullmatch(text):
                    raise field_error(
                        f"“{text[:60]}” cannot stand in a command: use letters, digits and _ . / : @ % + , = -, or let the "
                        f"program read the environment variable {name}.",
                        "parameters",
                        name,
                        "values",
                    )

    def _check_when(self, name: str, parameter: Parameter) -> None:
        for other, values in parameter.when.items():
            chosen = self.parameters.get(other)
            path = ("parameters", name, "when", other[:60])
            if chosen is None or other == name or chosen.type != "choice" or chosen.when:
                raise field_error("Name another parameter that is a choice and is always there.", *path)
            for value in values:
                if not chosen.has(value):
                    raise field_error(f"“{written(value)[:60]}” is no value of {other}.", *path)

    def _check_folds(self) -> None:
        if self.folds is None:
            return
        said = self.template.input
        if said is None:
            raise field_error("Folds need an input, and the cluster has none.", "folds")
        if said.folds:
            raise field_error(
                "The folds are held out in turn; leave them out of the input.", "template", "input", "folds"
            )
        if said.mode == "stream":
            raise field_error("What is streamed is not divided into folds; copy it.", "template", "input", "mode")

    def _check_count(self) -> None:
        if self.sampler == "grid":
            for name, parameter in self.parameters.items():
                if parameter.size is None:
                    sentence = "A grid needs a step, or a choice of values." if not parameter.log else (
                        "A grid needs a choice of values: with log there is no step."
                    )  # fmt: skip
                    raise field_error(sentence, "parameters", name, "log" if parameter.log else "step")
            points = grid_size(self.parameters)
            if points > MAX_TRIALS and self.trials is None:
                is_exact = points < 10**30 and not any(each.when for each in self.parameters.values())
                size = f"{points:,}" if is_exact else f"more than {MAX_TRIALS:,}"
                raise field_error(
                    f"This grid has {size} combinations, and a sweep at most {MAX_TRIALS:,}: use fewer values, or set trials.",
                    "parameters",
                )
            if self.trials is not None and self.trials > points:
                raise field_error(f"This grid has {points:,} combination{'s' * (points > 1)}.", "trials")
        elif self.trials is None:
            raise field_error("Enter the number of trials; only a grid has one of its own.", "trials")
        if (runs := self.points * (self.folds or 1)) > MAX_TRIALS:
            raise field_error(
                f"{self.points:,} trials with {self.folds} folds are {runs:,} runs; at most {MAX_TRIALS:,}.", "trials"
            )

    def _check_one_run(self) -> None:
        template = self.template
        if template.framework != "parallel" or template.count("worker") != 1:
            raise field_error(
                "In one run trials are copies of a command: choose 'parallel' with one worker, or leave this out.",
                "oneRun",
            )
        if template.hooks:
            raise field_error("Hooks are of a run, and all trials are one; leave one of both out.", "oneRun")
        if template.time_limit is not None:
            raise field_error(
                "A time limit is that of a run, and all trials are one; write `timeout 600` before the command.",
                "template",
                "timeLimit",
            )
        if template.input and template.input.mode == "shard":
            raise field_error("Each trial of one run reads the whole input; copy it.", "template", "input", "mode")
        for is_said, name in (
            (self.sampler == "tpe", "sampler"),
            (self.stop_early, "stopEarly"),
            (self.folds, "folds"),
        ):
            if is_said:
                raise field_error(
                    "Trials in one run are sampled by grid or at random, without folds and early stopping.", name
                )
        if taken := sorted(READ_ONLY & self.parameters.keys()):
            raise field_error(f"bash keeps {taken[0]} for itself; choose another name.", "parameters", taken[0])

    def _texts(self) -> Iterable[str]:
        """The texts in which a program may read a parameter."""
        yield self.template.command
        yield from self.kept_env.values()
        if self.template.code and self.template.code.files:
            yield from self.template.code.files.values()
        if self.template.notebook:
            yield self.template.notebook.source

    @property
    def kept_env(self) -> dict[str, str]:
        """The template's variables in all trials: those that no parameter replaces."""
        return {name: text for name, text in self.template.env.items() if name not in self.parameters}

    @property
    def points(self) -> int:
        """Total number of points."""
        return self.trials if self.trials is not None else grid_size(self.parameters)


KEEPS = Kept("A sweep keeps its name and its appcode; make another one.")


class SweepMetadata(Strict):
    name: Annotated[SweepName, KEEPS]
    appcode: Annotated[AppcodeName, KEEPS]


class SweepManifest(Manifest):
    """`{"kind":"sweep","metadata":{"name","appcode"},"spec":{…}}`. The portal writes `status` and ignores it in requests."""

    kind: Literal["sweep"] = "sweep"
    metadata: SweepMetadata
    spec: Annotated[SweepSpec, Kept("This is what its trials have in common; make another sweep.")]


def trial_name(sweep: str, number: int, fold: int) -> str:
    """Name of a trial's cluster. `fold` is 0 without folds."""
    return f"{sweep}-{number}-{fold}" if fold else f"{sweep}-{number}"


def name_again(sweep: str, number: int) -> str:
    """Default name of a cluster that repeats a trial, at most 40 characters."""
    return f"{trial_name(sweep, number, 0)[: CLUSTER_NAME - 6]}-again"


def in_braces(spec: SweepSpec) -> re.Pattern[str]:
    """Matches a parameter's name in braces, `{lr}`, but not `${lr}`, which is a shell variable."""
    return re.compile(r"(?<!\$)\{(" + "|".join(map(re.escape, spec.parameters)) + r")\}")


def put_in(spec: SweepSpec, text: str) -> list[tuple[str, bool]]:
    """The parts of a text in order, each with whether it is a parameter's name."""
    return [(part, bool(number % 2)) for number, part in enumerate(in_braces(spec).split(text))]


def put_in_value(spec: SweepSpec, text: str) -> list[tuple[str, bool]]:
    """`put_in` for a variable's value. The references of each text part do not depend on the parts beside it."""
    parts = put_in(spec, text)
    return [(part if is_name else variables.apart(part), is_name) for part, is_name in parts] if parts[1:] else parts


def trial_spec(spec: SweepSpec, point: Mapping[str, Value], fold: int = 0) -> dict[str, Any]:
    """The ClusterSpec of one trial, as JSON: the template with a point's parameters.

    A parameter replaces the template's variable of its name. One that this point does not have is no variable, and becomes empty
    where its name is in braces. Other braces, also `${name}`, stay.
    """
    template = spec.template
    texts = {name: written(point[name]) if name in point else "" for name in spec.parameters}

    def put(text: str) -> str:
        return "".join(texts[part] if is_name else part for part, is_name in put_in(spec, text))

    # A parameter's value must not be read as a reference, nor form one with the text beside it.
    env = {
        name: "".join(variables.literal(texts[part]) if is_name else part for part, is_name in put_in_value(spec, text))
        for name, text in spec.kept_env.items()
    }
    env |= {name: variables.literal(texts[name]) for name in point}
    body: dict[str, Any] = template.model_dump(mode="json", by_alias=True)
    body |= {"command": put(template.command), "env": env}
    if template.notebook:
        body["notebook"]["parameters"] |= dict(point)
    if fold:
        said = body["input"] if isinstance(body["input"], dict) else {"datastore": body["input"]}
        body["input"] = said | {"fold": fold, "folds": spec.folds}
    return body
