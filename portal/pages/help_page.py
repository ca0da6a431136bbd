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
from portal.pages.layout import address_of, sends_mail, words
from portal.search import words_of


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


@dataclass(frozen=True)
class Answer:
    """What people ask, how it is done, and the page where: a route, with `query` behind its address. `words` find it, too."""

    question: str
    text: str
    route: str
    query: str = ""
    words: str = ""

    @property
    def url(self) -> str | None:
        """None without the app that has the page."""
        there = address_of(self.route)
        return None if there is None else f"{there}{self.query}"


ANSWERS = (
    Answer(
        "Stop paying", "GPUs cost while a run holds them; stop what runs and is not needed. Volumes and buckets cost until "
        "they are deleted.", "home", "?phase=Queued,Starting,Running", "stop billing cost money end cancel kill terminate",
    ),
    Answer(
        "See what was spent", "This month by appcode, with a forecast; Spending goes down to a single task.", "billing",
        words="how much spend spending cost costs money bill billing paid month",
    ),
    Answer(
        "Find what costs most", "Clusters sorted by the cost of their last runs.", "clusters", "?sort=-cost",
        "most expensive sort sorted cost costs cheapest price",
    ),
    Answer(
        "See a price before you pay", "The form says what an hour costs as soon as a flavor is chosen.", "new_cluster",
        words="price prices rate gpu hour cost estimate",
    ),
    Answer(
        "Invite somebody", "Open your appcode. Its owners add people under Members, by user name.", "appcodes",
        words="invite add member members people person user colleague teammate share access team",
    ),
    Answer(
        "Make an API token", "Profile, API tokens. Programs send it as “Authorization: Bearer …”.", "profile", "#tokens",
        "api token tokens key rest curl program bearer",
    ),
    Answer(
        "Upload data", "Open a datastore and drop files or folders there. Name it as the input of a cluster.", "datastores",
        words="upload data dataset file files folder add import copy put",
    ),
    Answer(
        "Download output", "Open the datastore of the output: files one by one, folders as ZIP. Overview of a run links to "
        "its own.", "datastores", words="download get output outputs result results file files model weights zip",
    ),
    Answer(
        "Get more GPUs", "The page of an appcode shows its quota, and asks for more.", "appcodes",
        words="more gpu gpus quota limit increase raise request",
    ),
    Answer(
        "See why a run waits", "Queue says what each run waits for, who holds the GPUs, and when it is expected to start.",
        "queue", words="why wait waits waiting pending queued stuck job cluster slow start starting",
    ),
    Answer(
        "Install packages", "Name them under Code → Requirements, one a line. In Jupyter use pip, then Save environment.",
        "new_cluster", "#id_requirements",
        "pip install package packages library dependency dependencies conda module modulenotfounderror importerror requirements",
    ),
    Answer(
        "Run code from Git", "Name the repository under Code; private ones need a Git token of the appcode.", "new_cluster",
        "#id_code_git", "git github gitlab repository repo clone branch commit code",
    ),
    Answer(
        "Avoid running out of memory", "Of a GPU: a smaller batch, mixed precision, or a flavor with a larger GPU. Of a "
        "task (OOMKilled): a flavor with more memory.", "new_cluster", "#id_master_flavor",
        "oom oomkilled killed cuda memory memoryerror resourceexhaustederror exhausted ram",
    ),
    Answer(
        "See why a run failed", "Its Overview has the exception, the lines before it, and what usually mends it.", "home",
        "?phase=Failed", "error errors exception traceback crash crashed failed failure debug keyerror valueerror typeerror "
        "filenotfounderror runtimeerror indexerror attributeerror nameerror",
    ),
    Answer(
        "Open a terminal", "Terminal stands beside each running task on the Overview of its cluster.", "home", "?phase=Running",
        "terminal shell ssh bash console exec log in",
    ),
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
        return all(word in " ".join(texts).lower() for word in words_of(typed))

    first_hour = [step for step in mine if has(step.title, step.how)]
    context = {
        "words": typed,
        "answers": [each for each in ANSWERS if each.url and has(each.question, each.text, each.words)],
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
