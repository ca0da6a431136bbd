"""Help: what to try first, what programs can do, what the words mean, where REST is described, and for administrators what is
left to set up.

Apps register the set-up steps (`extension_points.steps`) and the recipes. Whether a step is done is read from the
database, not ticked by a person.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.text import slugify
from django.views.decorators.http import require_GET

from portal import extension_points
from portal.models import Appcode, OrgNode, User
from portal.pages.appcodes import person
from portal.pages.layout import sends_mail, words


@dataclass(frozen=True)
class Term:
    """A word of the pages, and what it means."""

    name: str
    meaning: str

    @property
    def anchor(self) -> str:
        return slugify(self.name)


TERMS = (
    Term("Appcode", "Who pays. Its members are owners, developers and viewers."),
    Term("Quota", "GPUs that an appcode can always have, as others give them back when it needs them; and storage."),
    Term("Borrowed", "GPUs beyond the quota, as far as the appcode may borrow and nobody else needs them."),
    Term("Urgent and spare", "Urgent runs come first in their appcode. Spare ones take what nobody needs, outside the quota."),
    Term("Taken back", "A spare or borrowed run yields to one with more right. It waits again, and its saved output stays."),
    Term("Weight", "An appcode's part of the GPUs that are lent, against those of others. Administrators set it."),
    Term("Maintenance window", "A time for which nodes are closed. Before it, only runs start there that end in time."),
    Term("Business line", "A part of the organisation. It has a namespace, and a cloud on which its runs are made."),
    Term("Cluster", "A definition: a program, its data, and the machines it runs on."),
    Term("Run", "One deployment of a cluster, with its own logs, metrics and cost."),
    Term("Task", "One process group of a run: a master, a parameter server, a worker, an evaluator."),
    Term("Flavor", "A size of task: GPUs, CPU cores and memory."),
    Term("Image", "The software that a task finds, TensorFlow for example."),
    Term("Application", "A program with GPUs that you open in a browser, such as a Jupyter notebook."),
    Term("Datastore", "Where data lives. Tasks read /elearn/input and write /elearn/output."),
    Term("Batch and service", "A batch run ends when its work is done; a service runs until somebody stops it."),
    Term("GPU-hour", "One GPU held for one hour, busy or not. Waiting costs nothing."),
    Term("Budget", "What may be spent in a month, and what happens when it is used up."),
)  # fmt: skip


# What the keyboard does: the keys, and what they do.
KEYS = (
    (("Ctrl K", "/"), "Find anything, go to any page, do something: “show1 logs”, “stop show1”, “new cluster”, “dark”"),
    (("↑", "↓"), "Move in menus and results"),
    (("Esc",), "Close"),
)


@require_GET
def help_page(request: HttpRequest) -> HttpResponse:
    """With `?search=`, what has all of these words."""
    typed, user = words(request), person(request)
    notes = [note for found in extension_points.notes for note in found()]
    mine = [step for found in extension_points.first_hour for step in found(user)]
    setup = [step for found in extension_points.steps for step in found()] if user.is_administrator else []

    def has(*texts: str) -> bool:
        return all(word in " ".join(texts).lower() for word in typed.lower().split())

    first_hour = [step for step in mine if has(step.title, step.how)]
    context = {
        "words": typed,
        "terms": [term for term in TERMS if has(term.name, term.meaning)],
        "first_hour": first_hour,
        "next_step": next((step for step in first_hour if typed or not step.done), None),
        "recipes": [each for each in extension_points.recipes if has(each.title, each.text, each.code)],
        "steps": [step for step in setup if has(step.title)],
        "notes": [note for note in notes if has(note)],
        "keys": [(keys, what) for keys, what in KEYS if has("keys keyboard", what)],
        "rest": has("rest api tokens programs"),
    }
    return render(request, "portal/help.html", context)


def steps() -> list[extension_points.Step]:
    """The portal's own set-up steps."""
    return [
        extension_points.Step(
            "Name the business lines", OrgNode.objects.exclude(namespace=None).exists(), reverse("admin_orgs")
        ),
        extension_points.Step(
            "Let people in", User.objects.filter(is_superuser=False).exists(), reverse("admin_people")
        ),
        extension_points.Step(
            "Approve an appcode", Appcode.objects.filter(state=Appcode.State.ACTIVE).exists(), reverse("admin_appcodes")
        ),
        extension_points.Step("Send mail (EMAIL_URL)", sends_mail(), ""),
    ]
