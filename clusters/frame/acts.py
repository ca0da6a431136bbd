"""The buttons of an object's page: one POST each, with a confirmation where something would be lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from portal.access import OPERATE
from portal.objects import Objects
from portal.pages.appcodes import attempt, person


@dataclass(frozen=True)
class Act:
    """`do(row, *, acting_user)`. `done` is the message afterwards; `lost`, if set, is shown in a confirmation first."""

    do: Callable[..., Any]
    label: str
    done: str
    lost: str = ""


def act_view(
    objects: Objects[Any], acts: Mapping[str, Act], ask: str = "clusters/frame/ask.html"
) -> Callable[..., Any]:
    """The view of `acts`, by verb, on the objects whose page and list are the addresses KIND and KINDs. `ask` is the template of
    the confirmation."""

    @require_http_methods(["GET", "HEAD", "POST"])
    def act(request: HttpRequest, appcode: str, name: str, verb: str) -> HttpResponse:
        user, kind, wanted = person(request), objects.kind, acts[verb]
        found = objects.find(user, appcode, name, OPERATE)
        if request.method != "POST" or (wanted.lost and "confirmed" not in request.POST):
            page = {"found": found, "act": wanted, "kind": kind, "kinds": f"{kind}s"}
            return render(request, ask, page)
        done = attempt(request, lambda: wanted.do(found, acting_user=user), wanted.done.format(name=name))
        return redirect(f"{kind}s") if done and verb == "delete" else redirect(kind, appcode, name)

    return act
