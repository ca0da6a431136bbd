"""The New Cluster form: another way to write a cluster manifest.

The form judges nothing itself. It turns what was typed into a manifest's dictionary, lets `ClusterManifest` (and later the
action) say what is wrong, and puts each sentence beside the field that its path names. So the form and REST accept and
refuse the same things, in the same words.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django import forms
from pydantic import ValidationError

from clusters.code import MAX_KIB
from clusters.frameworks import COMPUTING, COMPUTING_COMPLETIONS, COMPUTING_ROLES
from clusters.frameworks.base import MAX_TASKS_PER_ROLE, Role
from clusters.input import MAX_FOLDS
from clusters.manifest import ClusterManifest
from clusters.pages.choices import Offer
from clusters.pages.conversion import INPUT_INITIAL, TIME_UNITS, field_of, fits_datetime_local, hook_field, manifest_of
from clusters.pages.raw_text import Ticks, Words
from portal.errors import FieldError
from portal.manifests import mistakes
from portal.pages.forms import with_link

FOLDED = (
    "input_path", "input_version", "input_mode", "input_fold", "input_folds", "framework", "keras", "mode", "completion",
    "retries", "time_limit", "time_limit_unit", "schedule_after", "output_path", "home", "endpoints", "access", "notebook",
    *(f"{name}_{what}" for name, role in COMPUTING_ROLES.items() if not role.takes_part for what in ("flavor", "count")),
)  # fmt: skip


HOOKS = ("hooks_used", "hook_on", "hook_command", "hooks")
_CODE = {"class": "code", "autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}


def frameworks_with(role: str) -> Sequence[str]:
    return [name for name, driver in COMPUTING.items() if role in {each.name for each in driver.roles}]


def _choice(**options: Any) -> Words:
    return Words(widget=forms.Select(), **options)


def _role_fields() -> Iterator[tuple[str, forms.Field]]:
    """A flavor for every role that any framework has, and a count where there is one to choose."""
    for name, role in COMPUTING_ROLES.items():
        yield (
            f"{name}_flavor",
            Words(label=role.title, widget=forms.Select(), required=bool(role.least), help_text=role.hint),
        )
        if not role.is_fixed:
            label = f"How many {role.title.lower()}s"
            attributes = {"min": 0, "step": 1, "inputmode": "numeric", "aria-label": label}
            yield f"{name}_count", Words(label="Count", initial="0", widget=forms.NumberInput(attrs=attributes))


@dataclass(frozen=True)
class RoleFields:
    """`count` is None where there is nothing to choose; `frameworks` are those that have the role."""

    role: Role
    flavor: forms.BoundField
    count: forms.BoundField | None
    frameworks: Sequence[str]


class ClusterForm(forms.Form):
    """Fields in the order in which people fill them, those of the roles (below) apart. After `is_valid()`, `manifest` is what was
    asked for."""

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
    environment = _choice(
        label="Environment", required=False, help_text="packages over the image that were saved in a notebook"
    )
    input = _choice(label="Input", required=False, help_text="mounted at /elearn/input")
    input_path = Words(
        label="Input folder",
        required=False,
        help_text="Inside the input; empty for all of it.",
        widget=forms.TextInput(
            attrs={"class": "code", "autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}
        ),
    )
    input_version = Words(
        label="Input version",
        required=False,
        help_text="Of a datastore that has some: the run fails when something else lies there.",
        widget=forms.TextInput(
            attrs={"class": "code", "autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}
        ),
    )
    input_mode = _choice(
        label="How it is read",
        required=False,
        initial=INPUT_INITIAL["input_mode"],
        help_text="In parts, each master and worker has some files. For inputs in S3: copied once, on Kubernetes of a version; "
        "or read by the program, which finds PORTAL_INPUT.",
    )
    input_fold = Words(
        label="Fold held out",
        required=False,
        help_text="Then its files are in validation/ and all others in train/.",
        widget=forms.NumberInput(attrs={"min": 1, "max": MAX_FOLDS, "step": 1, "inputmode": "numeric"}),
    )
    input_folds = Words(
        label="of folds",
        required=False,
        widget=forms.NumberInput(attrs={"min": 2, "max": MAX_FOLDS, "step": 1, "inputmode": "numeric"}),
    )
    output = _choice(
        label="Output",
        required=False,
        help_text="mounted at /elearn/output. On Kubernetes, tasks share files such as checkpoints on NFS and volumes only, not "
        "in S3.",
    )
    command = Words(
        label="Command",
        help_text='Run as bash -o pipefail -c "…": it fails when any program of a pipe fails.',
        widget=forms.Textarea(attrs={"rows": 4, "class": "code", "spellcheck": "false", "autocapitalize": "none"}),
    )
    code_git = Words(
        label="Git repository",
        required=False,
        help_text="Fetched to /elearn/code, where the command starts; a private one by a Git token of the appcode.",
        widget=forms.TextInput(
            attrs={**_CODE, "placeholder": "https://git.example.com/team/project.git", "inputmode": "url"}
        ),
    )
    code_ref = Words(
        label="Ref",
        required=False,
        help_text="branch, tag or commit",
        widget=forms.TextInput(attrs={**_CODE, "placeholder": "main"}),
    )
    code_path = Words(
        label="Folder",
        required=False,
        help_text="where it starts",
        widget=forms.TextInput(attrs=_CODE),
    )
    code_files = Words(
        label="Files",
        required=False,
        help_text="Your program, where it is not in Git: at /elearn/code in every task, where the command starts.",
        widget=forms.Textarea(
            attrs={
                "rows": 3,
                "class": "code",
                "spellcheck": "false",
                "autocapitalize": "none",
                "data-files": MAX_KIB,
                "placeholder": '{"train.py": "print(1)"}',
            }
        ),
    )
    requirements = Words(
        label="Requirements",
        required=False,
        help_text="What pip installs over the image before the run starts, once for all runs that say the same: pandas>=2.2, one "
        "a line, or -r requirements.txt for one of the files above.",
        widget=forms.Textarea(attrs={"rows": 2, **_CODE}),
    )
    env = Words(
        label="Environment variables",
        required=False,
        help_text="One NAME=value per line, or separated by |. $NAME in a value means another variable, as in "
        "PATH=/opt/tool/bin:$PATH; $$ is a dollar.",
        widget=forms.Textarea(attrs={"rows": 2, "class": "code", "spellcheck": "false", "autocapitalize": "none"}),
    )
    framework = _choice(
        label="Framework",
        initial=next(iter(COMPUTING)),
        help_text="Parallel: copies of one command, workers that know nothing of each other.",
    )
    keras = Words(
        label="Keras",
        required=False,
        help_text="What tf.keras is. Many older programs, and fit with parameter servers, need Keras 2.",
        widget=forms.Select(choices=[("", "As in the image"), ("2", "Keras 2 (tf_keras)"), ("3", "Keras 3")]),
    )
    mode = _choice(
        label="Mode", initial="batch", help_text="A batch run ends; a service is kept alive until it is disabled."
    )
    completion = _choice(
        label="Completion",
        initial=next(iter(COMPUTING_COMPLETIONS)),
        help_text="Then the other tasks end and GPUs are free again.",
    )
    at_once = Words(
        label="At once",
        required=False,
        help_text="So many run at the same time, and the next when one has ended. Empty: all of them.",
        widget=forms.NumberInput(
            attrs={"min": 1, "max": MAX_TASKS_PER_ROLE, "step": 1, "inputmode": "numeric", "placeholder": "all"}
        ),
    )
    retries = Words(
        label="Retries",
        required=False,
        help_text="How often one task may fail and be started again. Empty: once when it was killed or ran out of memory, never "
        "when its program failed.",
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
    # The zone of that time: the browser says the person's own.
    schedule_zone = Words(
        initial="UTC", required=False, widget=forms.HiddenInput(attrs={"data-zone-of": "id_schedule_after"})
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

    home = _choice(
        label="Home",
        required=False,
        help_text="mounted at /elearn/home, with files of its own that outlive the run",
    )
    endpoints = Words(
        label="Endpoints",
        required=False,
        help_text="What a service serves by HTTP, opened in a browser: ROLE NAME=PORT, e.g. master web=8080/health",
        widget=forms.TextInput(
            attrs={"class": "code", "autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}
        ),
    )
    access = Words(
        label="Who may open them",
        required=False,
        help_text="empty for members of the appcode, “everybody” who is signed in, or “people: alice, bob”",
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}),
    )

    notebook = Words(
        label="Notebook",
        required=False,
        help_text="Of the framework Notebook: its path, parameters and text as JSON, as “Run as cluster” of a notebook writes it",
        widget=forms.Textarea(attrs={"rows": 3, "class": "code", "spellcheck": "false", "autocapitalize": "none"}),
    )

    hooks_used = Words(label="Hooks of the appcode", required=False, widget=Ticks())
    hook_on = _choice(label="When it is run", initial="success")
    hook_command = Words(
        label="A command of your own",
        required=False,
        help_text="Run as bash -o pipefail -c “…” where the run starts; what it wrote is at $PORTAL_OUTPUT (before it, what "
        "it is to read at $PORTAL_INPUT), its facts in PORTAL_FACTS.",
        widget=forms.Textarea(attrs={"rows": 3, "class": "code", "spellcheck": "false", "autocapitalize": "none"}),
    )
    hooks = Words(
        label="More hooks",
        required=False,
        help_text="As JSON, as in a manifest, for what the fields above cannot say.",
        widget=forms.Textarea(
            attrs={
                **_CODE,
                "rows": 2,
                "placeholder": '[{"name": "export", "command": "python export.py", "flavor": "middle", "retries": 1}]',
            }
        ),
    )

    def __init__(self, offer: Offer, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.manifest: ClusterManifest | None = None
        self.offer = offer
        for name, choices in offer.choices().items():
            self._choose(name, choices)
        completions = {name: [each.name for each in driver.completions] for name, driver in COMPUTING.items()}
        self.fields["framework"].widget.attrs["data-completions"] = json.dumps(completions)
        self._offer_hooks()
        self.fields["image"].widget.attrs["data-frameworks"] = json.dumps(offer.frameworks())
        schedule = self["schedule_after"].value()
        if schedule and not fits_datetime_local(schedule):
            self.fields["schedule_after"].widget = forms.TextInput()

    def clean(self) -> dict[str, Any]:
        values = {name: self.cleaned_data.get(name, "") for name in self.fields}
        document, complaints = manifest_of(values)
        try:
            self.manifest = ClusterManifest.model_validate(document)
        except ValidationError as error:
            complaints += mistakes(error)
        if complaints:
            self.manifest = None
            self.complain(complaints)
        return self.cleaned_data

    def complain(self, errors: Iterable[FieldError]) -> None:
        """Puts each sentence beside the field that its path names, or above the form; one for each field."""
        for error in errors:
            field = field_of(error.path)
            if field == "hooks":
                field = hook_field(error.path, {name: str(self[name].value() or "") for name in HOOKS})
            if field is None:
                self.add_error(None, f"{'.'.join(error.path)}: {error.message}")
            elif field not in self.errors:
                variable = f"{error.path[2]}: " if field == "env" and len(error.path) > 2 else ""
                self.add_error(field, with_link(replace(error, message=variable + error.message)))

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
    def roles(self) -> list[RoleFields]:
        """The roles that take part, then those that stand apart."""
        return [
            RoleFields(
                role, self[f"{name}_flavor"], None if role.is_fixed else self[f"{name}_count"], frameworks_with(name)
            )
            for name, role in sorted(COMPUTING_ROLES.items(), key=lambda item: not item[1].takes_part)
        ]

    @property
    def independent(self) -> Sequence[str]:
        """The frameworks whose tasks may take turns."""
        return [name for name, driver in COMPUTING.items() if driver.is_independent]

    @property
    def with_keras(self) -> Sequence[str]:
        """The frameworks whose programs may have one Keras or the other."""
        return [name for name, driver in COMPUTING.items() if driver.has_keras]

    @property
    def leads(self) -> Sequence[str]:
        """The frameworks whose first role has one task, whatever else there is."""
        return frameworks_with(next(name for name, role in COMPUTING_ROLES.items() if role.is_fixed))

    @property
    def has_environments(self) -> bool:
        """Whether there is anything to choose, or something that was chosen."""
        return bool(self.offer.environments) or bool(self["environment"].value())

    @property
    def opens_folded(self) -> bool:
        """Whether something that is folded away was changed or is wrong."""
        return self._differ(name for name in FOLDED if name != "time_limit_unit")

    @property
    def opens_hooks(self) -> bool:
        return self._differ(HOOKS)

    def _differ(self, names: Iterable[str]) -> bool:
        return any(
            name in self.errors or str(self[name].value() or "") != str(ClusterForm.base_fields[name].initial or "")
            for name in names
        )

    def _offer_hooks(self) -> None:
        """Those of the appcode, and what is ticked even if it is gone by now."""
        widget = self.fields["hooks_used"].widget
        assert isinstance(widget, Ticks)
        known = dict(self.offer.hooks)
        gone = (name for name in str(self["hooks_used"].value() or "").split() if name not in known)
        widget.choices = [
            *((name, f"{name}: {words}" if words else name) for name, words in self.offer.hooks),
            *((name, f"{name} (not available)") for name in gone),
        ]

    def _choose(self, name: str, choices: list[tuple[str, str]]) -> None:
        """Offers `choices`, and what was typed or filled in even if it is gone by now: nothing typed is lost."""
        value = str(self[name].value() or "")
        if value not in {key for key, _ in choices}:
            choices = [*choices, (value, f"{value} (not available)" if value else "Choose")]
        widget = self.fields[name].widget
        assert isinstance(widget, forms.Select)
        widget.choices = choices


ClusterForm.base_fields |= dict(_role_fields())
