"""The portal's URLs plus one page with a live part whose content the test decides."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template import RequestContext, Template
from django.urls import path
from django.views.decorators.http import conditional_page

from portal.urls import handler404, handler500
from portal.urls import urlpatterns as portal_patterns

__all__ = ["handler404", "handler500", "urlpatterns"]

PAGE = Template(
    """{% extends "base.html" %}{% load portal %}{% block heading %}Live{% endblock %}{% block content %}
    <div id="rows" data-live hx-get="/live/rows" hx-trigger="every 200ms">{{ rows }}</div>
    <button id="danger" form="post" formaction="/live" data-confirm="All of it." data-confirm-name="show1">Delete</button>
    {% endblock %}"""
)
ROWS = Template(
    """{% load portal %}<p id="text" data-announce>{{ text }}</p>
    {% menu "Actions" %}<a href="#x">One</a><a href="#y">Two</a>{% endmenu %}
    <input type="checkbox" name="pick" value="7" aria-label="Pick"><input name="note" aria-label="Note"><a href="#here">Link</a>
    <div class="table-wrap" id="wide" style="width: 100px; overflow-x: auto"><div style="width: 900px">wide</div></div>"""
)


class State:
    text = "first"
    posted = 0


def page(request: HttpRequest) -> HttpResponse:
    State.posted += request.method == "POST"
    return HttpResponse(
        PAGE.render(RequestContext(request, {"rows": ROWS.render(RequestContext(request, {"text": State.text}))}))
    )


@conditional_page
def rows(request: HttpRequest) -> HttpResponse:
    return HttpResponse(ROWS.render(RequestContext(request, {"text": State.text})))


urlpatterns: list[Any] = [path("live", page), path("live/rows", rows), *portal_patterns]
