"""The New Cluster form: another way to write a cluster manifest."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django import forms
from django.core.exceptions import NON_FIELD_ERRORS
from django.utils.html import format_html
from django.utils.safestring import SafeString

from clusters.admission.taking import GRACE_SECONDS, MAX_GRACE_SECONDS
from clusters.cluster.form.choices import Offer
from clusters.cluster.form.data import (
    ANSWER_OF,
    CLASS_CHOICES,
    FIELD_OF_PATH,
    INPUT_INITIAL,
    PLACEMENT_CHOICES,
    UNIT_CHOICES,
    fits_datetime_local,
    hook_field,
    manifest_of,
    read_json,
)
from clusters.frame.form import ManifestForm, area, aria, choice, line, number
from clusters.frame.raw_text import Ticks, Words
from clusters.frameworks import COMPUTING, COMPUTING_COMPLETIONS, COMPUTING_ROLES
from clusters.frameworks.base import MAX_TASKS_PER_ROLE, Role
from clusters.manifest.cluster import ClusterManifest
from clusters.manifest.code import MAX_KIB
from clusters.manifest.hook_spec import OWN
from clusters.manifest.hook_starters import STARTERS
from clusters.manifest.input import MAX_FOLDS
from portal.errors import FieldError, Invalid

# The roles of a cluster of one machine, by any framework.
USUAL = {name for name, role in COMPUTING_ROLES.items() if role.is_usual}
# Fields of the folded sections; a section opens when one of them was changed or has an error.
SECTIONS: Mapping[str, Sequence[str]] = {
    "code": ("code_git", "code_ref", "code_path", "code_files", "requirements"),
    "several": (
        *(f"{name}_{what}" for name in COMPUTING_ROLES if name not in USUAL for what in ("flavor", "count")),
        "at_once",
    ),
    "data": (
        "input_path", "input_version", "input_mode", "input_fold", "input_folds", "output_path", "home",
    ),
    "run": (
        "completion", "retries", "termination_grace_period", "priority_class", "placement", "schedule_after", "keras",
    ),
    "serving": ("mode", "endpoints", "access"),
    "hooks": ("hooks_used", "hook_starters", "hook_copy_to", "hook_address", "hook_on", "hook_command", "hooks"),
}  # fmt: skip
# Values for wrong or empty fields, so that the rest can be judged. A run costs and needs the same with them.
STAND_INS = {"name": "unnamed-unnamed-unnamed-unnamed-unnamed", "command": "true"}
# With an error in one of these, nobody can say what the run costs and needs.
PRICED = {
    "appcode", "image", "environment", "framework", "mode", "completion", "at_once", "input", "output", "home", "time_limit",
    "time_limit_unit", "priority_class", "hooks_used", "hook_starters", "hooks", "notebook", NON_FIELD_ERRORS,
    *(f"{name}_{what}" for name in COMPUTING_ROLES for what in ("flavor", "count")),
}  # fmt: skip


def frameworks_with(role: str) -> Sequence[str]:
    return [name for name, driver in COMPUTING.items() if role in {each.name for each in driver.roles}]


def _role_fields() -> Iterator[tuple[str, forms.Field]]:
    """A flavor field for every role of any framework, and a count field where the count is free."""
    for name, role in COMPUTING_ROLES.items():
        yield f"{name}_flavor", choice(role.title, role.hint, required=bool(role.least))
        if not role.is_fixed:
            yield (
                f"{name}_count",
                number("Count", initial="0", min=0, **aria(f"How many {role.title.lower()}s")),
            )


@dataclass(frozen=True)
class RoleFields:
    """`count` is None where it is fixed. `frameworks` are those that have the role."""

    role: Role
    flavor: forms.BoundField
    count: forms.BoundField | None
    frameworks: Sequence[str]

    @property
    def is_usual(self) -> bool:
        return self.role.name in USUAL


class ClusterForm(ManifestForm[ClusterManifest]):
    """Fields in the order in which people fill them in, then those of roles."""

    manifest_class = ClusterManifest
    paths = FIELD_OF_PATH

    appcode = choice("Appcode", "Who pays.")
    name = line("Name", "Lower-case letters, digits and “-”.", maxlength=63)
    image = choice("Image")
    environment = choice("Environment", "packages over the image that were saved in a notebook", required=False)
    input = choice("Input", "mounted at /elearn/input", required=False)
    input_path = line("Input folder", "Inside the input; empty for all of it.", required=False, code=True)
    input_version = line(
        "Input version",
        "Of a datastore that has some: the run fails when something else lies there.",
        required=False,
        code=True,
    )
    input_mode = choice(
        "How it is read",
        "In parts, each master and worker has some files. For inputs in S3: copied once, on Kubernetes of a version; "
        "or read by the program, which finds PORTAL_INPUT.",
        required=False,
        initial=INPUT_INITIAL["input_mode"],
    )
    input_fold = number(
        "Fold held out",
        "Then its files are in validation/ and all others in train/.",
        required=False,
        min=1,
        max=MAX_FOLDS,
    )
    input_folds = number("of folds", required=False, min=2, max=MAX_FOLDS)
    output = choice(
        "Output",
        "mounted at /elearn/output. On Kubernetes, tasks share files on NFS and volumes, not in S3.",
        required=False,
    )
    command = area("Command", 'Run as bash -o pipefail -c "…": it fails when any program of a pipe fails.', rows=3)
    code_git = line(
        "Git repository",
        "Fetched to /elearn/code, where the command starts; a private one by a Git token of the appcode.",
        required=False,
        code=True,
        placeholder="https://git.example.com/team/project.git",
        inputmode="url",
    )
    code_ref = line("Ref", "branch, tag or commit", required=False, code=True, placeholder="main")
    code_path = line("Folder", "where it starts", required=False, code=True)
    code_files = area(
        "Files",
        "Your program, where it is not in Git: at /elearn/code in every task, where the command starts.",
        required=False,
        rows=3,
        **{"data-files": MAX_KIB},
        placeholder='{"train.py": "print(1)"}',
    )
    requirements = area(
        "Requirements",
        "What pip installs over the image before the run starts, once for all runs that say the same: pandas>=2.2, one "
        "a line, or -r requirements.txt for one of the files above.",
        required=False,
        rows=2,
        autocomplete="off",
    )
    env = area(
        "Environment variables",
        "One NAME=value a line, or separated by |. $NAME in a value is another variable, $$ a dollar.",
        required=False,
        rows=3,
    )
    framework = choice("Framework", initial=next(iter(COMPUTING)))
    keras = choice(
        "Keras",
        "What tf.keras is. Many older programs, and fit with parameter servers, need Keras 2.",
        [("", "As in the image"), ("2", "Keras 2 (tf_keras)"), ("3", "Keras 3")],
        required=False,
    )
    mode = choice("Mode", "A batch run ends; a service is kept alive until it is stopped.", initial="batch")
    completion = choice(
        "Completion",
        "Then the other tasks end and GPUs are free again.",
        initial=next(iter(COMPUTING_COMPLETIONS)),
    )
    at_once = number(
        "At once",
        "So many run at the same time, and the next when one has ended. Empty: all of them.",
        required=False,
        min=1,
        max=MAX_TASKS_PER_ROLE,
        placeholder="all",
    )
    retries = number(
        "Retries",
        "How often one task may fail and be started again. Empty: once when it was killed or ran out of memory, never "
        "when its program failed.",
        required=False,
        min=0,
        max=10,
    )
    time_limit = number("Time limit", required=False, placeholder="none")
    time_limit_unit = choice("Unit", choices=UNIT_CHOICES, initial="hours", **aria("Unit of the time limit"))
    termination_grace_period = number(
        "Time to save, in seconds",
        "Between SIGTERM and SIGKILL whenever its tasks are ended: stopped, at the time limit, or taken back.",
        min=1,
        max=MAX_GRACE_SECONDS,
        initial=str(GRACE_SECONDS),
        required=False,
    )
    priority_class = choice(
        "Class",
        "Spare GPUs have a price of their own, never above the usual one, and do not count against the quota. They may be taken "
        "back at any time, after the first minute: the run waits again, and goes on from what it has saved in /elearn/output.",
        CLASS_CHOICES,
        initial="normal",
    )
    placement = choice(
        "Placement",
        "Where its tasks go if they need several nodes.",
        PLACEMENT_CHOICES,
        initial="pack",
    )
    schedule_after = Words(
        label="Schedule after (UTC)",
        required=False,
        help_text="The first deployment waits until this time.",
        widget=forms.DateTimeInput(attrs={"type": "datetime-local", "step": 1}),
    )
    # The time zone of schedule_after, set by the browser.
    schedule_zone = Words(
        initial="UTC", required=False, widget=forms.HiddenInput(attrs={"data-zone-of": "id_schedule_after"})
    )
    output_path = line(
        "Output folder",
        "Inside the output datastore; {name} and {run} are filled in. Without {run}, all runs share the folder.",
        required=False,
        initial="{name}/{run}",
        code=True,
    )
    home = choice("Home", "mounted at /elearn/home, with files of its own that outlive the run", required=False)
    endpoints = line(
        "Endpoints",
        "What a service serves by HTTP, opened in a browser: ROLE NAME=PORT, e.g. master web=8080/health",
        required=False,
        code=True,
    )
    access = line(
        "Who may open them",
        "empty for members of the appcode, “everybody” who is signed in, or “people: alice, bob”",
        required=False,
    )
    # What only a manifest can say is carried along, so that changing a cluster keeps it.
    notebook = Words(label="Notebook", required=False, widget=forms.HiddenInput())
    hooks_used = Words(label="Hooks of the appcode", required=False, widget=Ticks())
    hook_starters = Words(label="Ready to use", required=False, widget=Ticks())
    hook_copy_to = choice("Copy to", "In a folder of the run.")
    hook_address = line(
        "Address to notify",
        "It gets the facts of the run as JSON by POST.",
        code=True,
        placeholder="https://example.com/runs",
        inputmode="url",
    )
    hook_on = choice("When it is run", initial="success")
    hook_command = area(
        "A command of your own",
        "Run as bash -o pipefail -c “…” where the run starts; what it wrote is at $PORTAL_OUTPUT (before it, what "
        "it is to read at $PORTAL_INPUT), its facts in PORTAL_FACTS.",
        required=False,
        rows=3,
    )
    hooks = Words(label="More hooks", required=False, widget=forms.HiddenInput())

    def __init__(self, offer: Offer, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.offer = offer
        for name, choices in offer.choices().items():
            self.offer_kept(name, choices)
        self.close("image", offer.images_elsewhere)
        if not self["notebook"].value():
            self._without_notebooks()
        completions = {name: [each.name for each in driver.completions] for name, driver in COMPUTING.items()}
        self.fields["framework"].widget.attrs["data-completions"] = json.dumps(completions)
        self._offer_hooks()
        self.fields["image"].widget.attrs["data-frameworks"] = json.dumps(offer.frameworks())
        schedule = self["schedule_after"].value()
        if schedule and not fits_datetime_local(schedule):
            self.fields["schedule_after"].widget = forms.TextInput()

    def _without_notebooks(self) -> None:
        """Leaves out the frameworks that run a notebook: only “Run as cluster” of one brings it along."""
        choices = [(name, driver.title) for name, driver in COMPUTING.items() if not driver.runs_notebook]
        self.offer_kept("framework", choices)

    def document(self, values: Mapping[str, str]) -> tuple[dict[str, Any], list[FieldError]]:
        return manifest_of(values)

    def field_at(self, path: tuple[str, ...]) -> str | None:
        field = super().field_at(path)
        return hook_field(path, self.said()) if field == "hooks" else field

    def with_stand_ins(self) -> ClusterManifest | None:
        """The manifest with other values in the wrong fields; None if that leaves errors. It finds what else is wrong."""
        usual = {name: str(field.initial or "") for name, field in self.base_fields.items()}
        usual |= self.offer.defaults() | STAND_INS | {"appcode": self.offer.appcode or "none"}
        values = self.cleaned()
        values |= {name: usual[name] for name in self.errors if name in self.fields}
        # A starter hook without its answer is none yet.
        unanswered = [name for name, field in ANSWER_OF.items() if field in self.errors]
        values["hook_starters"] = " ".join(name for name in values["hook_starters"].split() if name not in unanswered)
        try:
            return self.parsed(values)
        except Invalid:
            return None

    @property
    def is_priced(self) -> bool:
        """Whether what is right is enough to say what the run costs and needs."""
        return not PRICED & self.errors.keys()

    @property
    def roles(self) -> list[RoleFields]:
        """The roles that take part in the training, then the others."""
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
        return [name for name, driver in COMPUTING.items() if driver.has_keras]

    @property
    def has_environments(self) -> bool:
        return bool(self.offer.environments) or bool(self["environment"].value())

    @property
    def opens(self) -> dict[str, bool]:
        """The folded sections that have something to show, by name."""
        found = {name: self._differ(fields) for name, fields in SECTIONS.items()}
        return found | {"several": found["several"] or self["framework"].value() in self.needs_several}

    @property
    def several(self) -> Sequence[str]:
        """The frameworks that have roles beside those of one machine."""
        return [name for name, driver in COMPUTING.items() if any(role.name not in USUAL for role in driver.roles)]

    @property
    def needs_several(self) -> Sequence[str]:
        """The frameworks that cannot do without such a role."""
        drivers = COMPUTING.items()
        return [name for name, driver in drivers if any(role.least and role.name not in USUAL for role in driver.roles)]

    @property
    def led(self) -> Sequence[str]:
        """The frameworks in which a master leads, or else worker 0."""
        return [name for name, driver in COMPUTING.items() if any(role.leads for role in driver.roles)]

    @property
    def notebook_path(self) -> str:
        """The path of the notebook that it runs, "" for none."""
        said = read_json(str(self["notebook"].value() or ""))
        return str(said.get("path", "")) if isinstance(said, dict) else ""

    @property
    def more_hooks(self) -> list[str]:
        """The names of the hooks that it has by its manifest, for which the form has no field."""
        said = read_json(str(self["hooks"].value() or ""))
        listed = said if isinstance(said, list) else []
        return [str(each.get("name") or each.get("use") or OWN) for each in listed if isinstance(each, dict)]

    def _differ(self, names: Iterable[str]) -> bool:
        return any(
            name in self.errors or str(self[name].value() or "") != str(ClusterForm.base_fields[name].initial or "")
            for name in names
        )

    def _offer_hooks(self) -> None:
        """Offers the appcode's hooks, ticked ones that no longer exist, and the starters of which the appcode has no version."""
        known = dict(self.offer.hooks)
        gone = (name for name in str(self["hooks_used"].value() or "").split() if name not in known)
        named = [(name, f"{name}: {words}" if words else name) for name, words in self.offer.hooks]
        self.choose("hooks_used", [*named, *((name, f"{name} (not available)") for name in gone)])
        ticked = str(self["hook_starters"].value() or "").split()
        offered = [each for each in STARTERS.values() if each.name in ticked or each.name not in known]
        self.choose("hook_starters", [(each.name, starter_label(each.title, each.description)) for each in offered])


def starter_label(title: str, description: str) -> SafeString:
    return format_html("{} <small>{}</small>", title, description)


ClusterForm.base_fields |= dict(_role_fields())
