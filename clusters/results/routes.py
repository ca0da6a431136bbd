"""Addresses of this room: pages, and REST below /api/v1/."""

from django.urls import URLPattern, URLResolver, path

from clusters.results import api, pages

PAGES: list[URLPattern | URLResolver] = [
    path("results", pages.home, name="results"),
    path("results/<slug:code>", pages.results, name="results_of"),
    path("results/<slug:code>/table", pages.table, name="results_table"),
    path("results/<slug:code>/csv", pages.csv, name="results_csv"),
    path("results/<slug:code>/columns", pages.choose_columns, name="results_columns"),
    path("results/<slug:code>/tags", pages.tag, name="results_tags"),
    path("results/<slug:code>/view", pages.keep, name="results_view"),
    path("clusters/<slug:appcode>/<slug:name>/runs/<int:run>/notes", pages.notes, name="run_notes"),
]

REST: list[URLPattern | URLResolver] = [
    path("appcodes/<slug:code>/results", api.Results.as_view()),
    path("appcodes/<slug:code>/results/views", api.Views.as_view()),
    path("appcodes/<slug:code>/results/view", api.CommonView.as_view()),
    path("appcodes/<slug:code>/clusters/<slug:name>/runs/<int:run>/notes", api.RunNotes.as_view()),
]
