"""Help: what to try first, what programs can do, what the words mean, where REST is described, and for administrators what is
left to set up.

Apps register the set-up steps (`extension_points.steps`) and the recipes. Whether a step is done is read from the
database, not ticked by a person.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.text import slugify
from django.views.decorators.http import require_GET

from portal import extension_points
from portal.models import Appcode, OrgNode, User
from portal.pages.appcodes import person
from portal.pages.layout import address_of, sends_mail, words
from portal.search import Hit, Item, Text, ranked, words_of


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
        "Train a model", "Name the command that starts your program, an image and a flavor; or run an example, above the form.",
        "new_cluster",
        words="train training trainings first begin start run job program script",
    ),
    Answer(
        "Train on several GPUs or machines", "In one task: a flavor with several GPUs. On several: Machines, Several machines, "
        "workers. The portal sets TF_CONFIG for TensorFlow, and what torchrun reads for PyTorch. “Several GPUs or machines” "
        "in Help has the lines for your program.", "new_cluster", "#id_worker_count",
        "multi multiple many gpu machine node nodes host worker distributed parallel scale strategy ddp fsdp horovod nccl "
        "allreduce parameter server cluster",
    ),
    Answer(
        "Use PyTorch", "Choose PyTorch under Framework, and an image that has it. Or keep another image and name torch under "
        "Requirements. Administrators add images.", "new_cluster", "#id_framework", "torch pytorch lightning torchvision image "
        "tensorflow instead jax framework",
    ),
    Answer(
        "Share results", "The address of Results holds its filters and columns: View, Copy the link. Members of the appcode see "
        "the same; make a viewer of whom should only look. View has the table as CSV, too.", "results",
        words="share link url address send show others somebody read only viewer viewers csv excel export download table report "
        "chart charts curve png picture",
    ),
    Answer(
        "Find the best run", "Click the heading of a metric in Results: the best come first. Tick runs, then Compare.",
        "results", words="best worst top lowest highest smallest largest loss accuracy metric sort rank leaderboard compare",
    ),
    Answer(
        "Filter runs", "Write conditions above Results, with commas, “and” or “or” between them: val_loss best < 0.1, LR = 0.1 | "
        "0.01, LR in (0.1, 0.01), started > yesterday, took > 10 min, name = mlp-*, state = failed, tag = baseline. A column is "
        "named as its heading.", "results", words="filter filters search find condition conditions where query narrow wildcard",
    ),
    Answer(
        "Tag runs", "In Results, the tags and the note of a run open in its row, for all members to read. tag = baseline filters "
        "by a tag.", "results", words="tag tags label labels note notes comment annotate mark remark",
    ),
    Answer(
        "Group runs", "Group in Results makes one row of all runs with the same value of a parameter, such as those with other "
        "seeds, and draws their mean curve with its range.", "results",
        words="group groups grouped mean average band range seed seeds repeat deviation aggregate",
    ),
    Answer(
        "Save a view", "View in Results keeps filters, columns and sorting under a name; members find it in the same menu. One "
        "can be the view with which everybody begins.", "results",
        words="view views save saved name filters columns sorting layout common",
    ),
    Answer(
        "Write a report", "Save a view in Results under a name, and write its text in Markdown: text, charts and rows are one "
        "page, whose link works for all members.", "results",
        words="report reports write text markdown document summary findings share wandb",
    ),
    Answer(
        "Tell curves apart", "A run has one colour for ever, on its row and in its charts. Of several with the same one, "
        "the newer are dashed.", "results", words="colour colours color colors dashed line lines legend curve curves",
    ),
    Answer(
        "Look at figures", "Save them into the output, as confusion.png or samples_0010.png: Metrics shows images, with a slider "
        "over the steps, histograms and tables. Help has the lines.", "help",
        "#images-and-tables",
        words="figure figures confusion matrix plot plots picture pictures matplotlib histogram histograms image images",
    ),
    Answer(
        "Find the best parameters", "A sweep trains a cluster again and again with other values, and can end bad trials early.",
        "new_sweep", words="hyperparameter hyperparameters search tune tuning grid random bayesian optuna sweep learning rate",
    ),
    Answer(
        "Train every night", "A schedule starts a cluster or a pipeline at given times.", "new_schedule",
        words="schedule scheduled night nightly daily day hour hourly week weekly cron regularly repeat recurring run job",
    ),
    Answer(
        "Set a variable", "Name it under Environment variables, as NAME=VALUE. They become columns of Results.", "new_cluster",
        "#id_env",
        "environment variable variables env parameter argument",
    ),
    Answer(
        "Clean up", "Tick clusters, then Delete. Files are removed in their datastore, and can be restored for seven days.",
        "clusters",
        words="clean cleanup tidy delete remove old unused several all clusters",
    ),
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
        "#id_code_git", "git github gitlab repository repo clone branch commit code use",
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
    Answer(
        "See what the machine did", "Overview of a run says how busy its GPUs, CPU cores and memory were; Metrics draws them "
        "over time.", "clusters",
        words="gpu utilization utilisation usage busy idle load memory cpu disk network nvidia-smi monitoring",
    ),
    Answer(
        "Get alerts", "Under “Tell me about my runs” choose mail, the browser or a webhook. The bell at the top lists what "
        "happened.", "profile", "#notifications", "alert notification notify notified bell webhook mail email message slack",
    ),
    Answer(
        "Use another Docker image", "Choose it under Image. Administrators add images. Python packages need no image: name them "
        "under Requirements.", "new_cluster", "#id_image", "docker container image custom own build",
    ),
    Answer(
        "Use VS Code", "The portal has no VS Code of its own. In yours, choose “Existing Jupyter Server” with the address and "
        "the access token of your notebook. For a shell, open a terminal.", "applications",
        words="vscode ide editor remote ssh pycharm",
    ),
    Answer(
        "Delete an account", "Accounts are never deleted. An administrator deactivates one, which ends its sessions and deletes "
        "its tokens.", "profile", words="remove close deactivate user person leave profile",
    ),
)  # fmt: skip


# What the keyboard does: the keys, and what they do.
KEYS = (
    (
        ("Ctrl K", "/"),
        "Find anything, go to any page, do something: “show1 logs”, “stop show1”, “my failed runs”, “loss < 0.1”",
    ),
    (("↑", "↓"), "Move in menus and results"),
    (("Esc",), "Close"),
)


# Words that ask for help itself: “help mlflow”.
ASKS = frozenset(("doc", "docs", "documentation", "help"))


@require_GET
def help_page(request: HttpRequest) -> HttpResponse:
    """With `?search=`, what has the most of these words, the best first."""
    typed, user = words(request), person(request)
    notes = [note for found in extension_points.notes for note in found()]
    mine = [step for found in extension_points.first_hour for step in found(user)]
    setup = [step for found in extension_points.steps for step in found()] if user.is_administrator else []
    parts: dict[str, list[Text[Any]]] = {
        "answers": _answers(),
        "terms": [Text(term, term.name, term.meaning) for term in TERMS],
        "first_hour": [Text(step, step.title, step.how) for step in mine],
        "recipes": [_recipe(each, each) for each in extension_points.recipes],
        "steps": [Text(step, step.title) for step in setup],
        "notes": [Text(note, "Machines", note) for note in notes],
        "keys": [Text(key, "Keys", f"keyboard shortcuts hotkeys {key[1]}") for key in KEYS],
        "rest": [Text(True, "REST API", "tokens programs")],
    }
    every = [Text((part, text.item), text.title, text.about) for part, texts in parts.items() for text in texts]
    found = ranked(every, _topic(typed))[0] if typed else [text.item for text in every]
    context: dict[str, Any] = {part: [item for its, item in found if its == part] for part in parts}
    context["next_step"] = next((step for step in context["first_hour"] if typed or not step.done), None)
    return render(request, "portal/help.html", context | {"words": typed})


def explained(typed: str) -> tuple[list[Hit], int]:
    """The answers, words and recipes of help with the most of the typed words, the best first; and how many words those are."""
    at, topic = reverse("help"), _topic(typed)
    texts = [
        *(
            Text(Hit(text.item.question, text.item.text, text.item.url or at, "help"), text.title, text.about)
            for text in _answers()
        ),
        *(Text(Hit(term.name, term.meaning, f"{at}#{term.anchor}", "help"), term.name) for term in TERMS),
        *(
            _recipe(each, Hit(each.title, "From your program", f"{at}#{each.anchor}", "help"))
            for each in extension_points.recipes
        ),
        Text(Hit("Keys", KEYS[0][1], f"{at}#keys", "help"), "Keys", "keyboard shortcuts hotkeys"),
    ]  # fmt: skip
    found, most = ranked(texts, topic)
    return found, most + len(words_of(typed)) - len(topic) if most else 0


def is_asked(typed: str) -> bool:
    """Whether help itself is asked for something: “help mlflow”."""
    return 0 < len(_topic(typed)) < len(words_of(typed))


def _topic(typed: str) -> list[str]:
    said = words_of(typed)
    return [word for word in said if word not in ASKS] or said


def _answers() -> list[Text[Answer]]:
    return [Text(each, each.question, f"{each.text} {each.words}") for each in ANSWERS if each.url]


def _recipe(recipe: extension_points.Recipe, item: Item) -> Text[Item]:
    return Text(item, recipe.title, f"{recipe.text} {recipe.code}")


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
