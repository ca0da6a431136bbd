"""Addresses of this room: pages, and REST below /api/v1/."""

from django.urls import URLPattern, URLResolver, path, re_path

from clusters.sweeps import api as sweeps_api
from clusters.sweeps.pages import charts, sweep
from clusters.sweeps.pages import list as sweeps
from clusters.sweeps.pages import new as new_sweep
from clusters.sweeps.pages import verbs as sweep_acts
from portal.api.verbs import verb_paths

SWEEP = "sweeps/<slug:appcode>/<slug:name>"
SWEEP_VERBS = "|".join(sweep_acts.ACTS)
REST_SWEEP = "appcodes/<slug:code>/sweeps/<slug:name>"

PAGES: list[URLPattern | URLResolver] = [
    path("sweeps", sweeps.sweeps, name="sweeps"),
    path("sweeps/rows", sweeps.rows, name="sweep_rows"),
    path("sweeps/new", new_sweep.new_sweep, name="new_sweep"),
    path("sweeps/preview", new_sweep.preview_sweep, name="preview_sweep"),
    path(SWEEP, sweep.sweep, name="sweep"),
    path(f"{SWEEP}/live", sweep.live),
    path(f"{SWEEP}/table", sweep.table),
    path(f"{SWEEP}/charts", charts.charts),
    path(f"{SWEEP}/curves", charts.curves),
    path(f"{SWEEP}/change", sweep_acts.change),
    path(f"{SWEEP}/trials/<int:trial>/train", sweep_acts.train),
    re_path(rf"^sweeps/(?P<appcode>[-\w]+)/(?P<name>[-\w]+)/(?P<verb>{SWEEP_VERBS})\Z", sweep_acts.act),
]

REST: list[URLPattern | URLResolver] = [
    path("sweeps", sweeps_api.AllSweeps.as_view()),
    path("appcodes/<slug:code>/sweeps", sweeps_api.AppcodeSweeps.as_view()),
    path(REST_SWEEP, sweeps_api.OneSweep.as_view()),
    *verb_paths(sweeps_api.KIND, sweeps_api.VERBS),
    path(f"{REST_SWEEP}/trials", sweeps_api.Trials.as_view()),
    path(f"{REST_SWEEP}/trials/<int:number>/cluster", sweeps_api.TrialCluster.as_view()),
]
