"""What people do with results: say something about a run, and keep a view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from django.db import transaction

from clusters.catalog.data import runs_named
from clusters.events import run_event
from clusters.results.models import ResultsView
from clusters.results.view import View
from clusters.runs.models import Run
from portal.access import OPERATE, require
from portal.errors import Invalid
from portal.events import record, record_all
from portal.models import Appcode, Event, User

MAX_TAGS, MAX_TAG, MAX_NOTE, MAX_QUERY = 20, 40, 2000, 4000
# Characters of the name of a view, and views of an appcode.
MAX_NAME, MAX_VIEWS, MAX_REPORT = 60, 50, 20_000


def tags_in(text: str) -> list[str]:
    """The tags of a text that divides them by commas, each once."""
    return list(dict.fromkeys(filter(None, (" ".join(part.split()) for part in text.split(",")))))


@transaction.atomic
def write_notes(run: Run, tags: Sequence[str], note: str, *, acting_user: User) -> None:
    """Replaces the tags and the note of a run, whose cluster and appcode are loaded. Idempotent. Raises PermissionDenied, and
    Invalid at `tags` or `note`."""
    require(acting_user, run.cluster.appcode, OPERATE)
    wanted, note = _judged(tags), note.strip()
    if len(note) > MAX_NOTE or "\0" in note:
        raise Invalid.at("note", message=f"At most {MAX_NOTE} characters.")
    before = Run.objects.select_for_update(no_key=True).only("tags", "note").get(pk=run.pk)
    if (before.tags, before.note) == (wanted, note):
        return
    Run.objects.filter(pk=run.pk).update(tags=wanted, note=note)
    run.tags, run.note = wanted, note
    record_all([_noted(run, acting_user)])


@transaction.atomic
def add_tags(appcode: Appcode, names: Sequence[str], tags: Sequence[str], *, acting_user: User) -> int:
    """Adds tags to all of these runs (train/3), or to none; returns how many there are. Raises as `write_notes`."""
    require(acting_user, appcode, OPERATE)
    named = [run.pk for run in runs_named(names, appcode).values()]
    # Read again under their locks, so that nobody's tag is lost.
    rows = Run.objects.select_related("cluster").select_for_update(of=("self",), no_key=True).order_by("pk")
    found, changed = list(rows.filter(pk__in=named)), list[Run]()
    for run in found:
        wanted = _judged([*run.tags, *tags])
        if wanted != run.tags:
            run.tags, run.cluster.appcode = wanted, appcode
            changed.append(run)
    Run.objects.bulk_update(changed, ["tags"])
    record_all([_noted(run, acting_user) for run in changed])
    return len(found)


def _judged(tags: Sequence[str]) -> list[str]:
    """Each once. Raises Invalid at `tags`."""
    wanted = list(dict.fromkeys(tags))
    if len(wanted) > MAX_TAGS:
        raise Invalid.at("tags", message=f"At most {MAX_TAGS} tags.")
    for tag in wanted:
        if not tag or len(tag) > MAX_TAG or tag != " ".join(tag.split()) or "," in tag or not tag.isprintable():
            raise Invalid.at("tags", message=f"“{tag[:60]}” is no tag: 1 to {MAX_TAG} characters without a comma.")
    return wanted


def _noted(run: Run, acting_user: User) -> Event:
    said = f"Run {run.number}: {', '.join(run.tags) or 'no tags'}" + (f"; {run.note[:200]}" if run.note else "")
    return run_event("run.noted", run, said, actor=acting_user)


def keep_own(appcode: Appcode, view: View, *, user: User) -> None:
    """Remembers what a person chose to see in a table: columns, order, pinned runs and whether there are charts, without
    filters, which belong to a question. A view without a choice of columns and with charts forgets it. The caller has
    checked that the person may see the appcode."""
    query = view.but(search="", state="", who="", tag="", where="", group="", drawn=None).query
    keep_query(appcode, view.scope, "" if view.columns is None and view.charts else query, user=user)


def keep_query(appcode: Appcode, scope: str, query: str, *, user: User) -> None:
    """Remembers the query of a person's own view, or forgets it if it is empty."""
    mine: dict[str, Any] = {"appcode": appcode, "person": user, "scope": scope}
    if query:
        ResultsView.objects.update_or_create(**mine, defaults={"query": query})
    else:
        ResultsView.objects.filter(**mine).delete()


@transaction.atomic
def keep_view(
    appcode: Appcode, view: View | None, *, name: str = "", text: str | None = None, acting_user: User
) -> None:
    """Keeps a view, with its filters, under a name; without one, members begin with it who have chosen none. None drops it.
    Without a `text` it keeps the one it has. Raises PermissionDenied, and Invalid at `name`, `query` or `text`."""
    require(acting_user, appcode, OPERATE)
    name, seen = " ".join(name.split()), view.but() if view else None
    query = seen.address if seen and (name or seen.query or seen.look) else ""
    if len(query) > MAX_QUERY:
        raise Invalid.at("query", message=f"At most {MAX_QUERY} characters.")
    if len(name) > MAX_NAME or not name.isprintable():
        raise Invalid.at("name", message=f"The name of a view has at most {MAX_NAME} printable characters.")
    if text and (len(text) > MAX_REPORT or "\0" in text):
        raise Invalid.at("text", message=f"The text of a view has at most {MAX_REPORT:,} characters.")
    Appcode.objects.select_for_update(of=("self",), no_key=True).get(pk=appcode.pk)
    rows = ResultsView.objects.filter(appcode=appcode, person=None)
    before = {each: (its_query, its_text) for each, its_query, its_text in rows.values_list("name", "query", "text")}
    old_query, old_text = before.get(name, ("", ""))
    text = old_text if text is None else text.replace("\r\n", "\n").strip()
    if (query, text if query else "") == (old_query, old_text):
        return
    if query and name and name not in before and len(before) >= MAX_VIEWS:
        raise Invalid.at("name", message=f"{appcode.code} has {MAX_VIEWS} views; delete one first.")
    rows.filter(name=name).delete()
    if query:
        ResultsView.objects.create(appcode=appcode, name=name, query=query, text=text)
    words = unquote(query).replace("&", ", ")[:200]
    if name:
        said = f"The view “{name}” of results shows {words}." if query else f"The view “{name}” of results is deleted."
    else:
        said = f"Results begin with {words}." if query else "Results begin without a view of the appcode."
    record(
        "appcode.results_view", actor=acting_user, appcode=appcode.code, object=f"appcode {appcode.code}", message=said
    )
