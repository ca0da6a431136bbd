"""Addresses of this room: pages, and REST below /api/v1/."""

from django.urls import URLPattern, URLResolver, path, re_path

from clusters.cluster.api import clusters
from clusters.cluster.api import exec as exec_api
from clusters.cluster.api import logs as logs_api
from clusters.cluster.api import machine as machine_api
from clusters.cluster.api import media as media_api
from clusters.cluster.api import metrics as metrics_api
from clusters.cluster.api import queue as queue_api
from clusters.cluster.api import shares as shares_api
from clusters.cluster.api import terminal as terminal_api
from clusters.cluster.api.verbs import VERBS as REST_VERBS
from clusters.cluster.form import new, offers
from clusters.cluster.pages import (
    cluster,
    last_lines,
    logs,
    machine,
    media,
    metrics,
    outcome,
    panels,
    plain,
    queue,
    shares,
    terminal,
    verbs,
)
from clusters.cluster.pages import list as listing
from portal.api.verbs import verb_paths

ONE = "clusters/<slug:appcode>/<slug:name>"
VERBS = "|".join(verbs.ACTS)
REST_ONE = "appcodes/<slug:code>/clusters/<slug:name>"

PAGES: list[URLPattern | URLResolver] = [
    path("clusters", listing.clusters, name="clusters"),
    path("clusters/rows", listing.rows, name="cluster_rows"),
    re_path(r"^clusters/(?P<verb>disable|deploy|delete)-several\Z", verbs.several, name="act_on_several"),
    path("clusters/spent", listing.spent, name="clusters_spent"),
    path("clusters/new", new.new_cluster, name="new_cluster"),
    path("clusters/start", new.start, name="start_card"),
    path("clusters/preview", new.preview_cluster, name="preview_cluster"),
    path("queue", queue.queue, name="queue"),
    path("queue/shares", shares.shares, name="shares"),
    path("clusters/import", new.import_clusters, name="import_clusters"),
    path("clusters/datastores", new.datastore_choices, name="datastore_choices"),
    path(ONE, cluster.overview, name="cluster"),
    path(f"{ONE}/head", cluster.head),
    path(f"{ONE}/progress", cluster.progress),
    path(f"{ONE}/last-lines", last_lines.last_lines),
    path(f"{ONE}/pace", last_lines.pace),
    path(f"{ONE}/outcome", outcome.outcome),
    path(f"{ONE}/logs", logs.logs, name="cluster_logs"),
    path(f"{ONE}/logs/read", logs.read),
    path(f"{ONE}/logs/search", logs.search),
    path(f"{ONE}/logs/download", logs.download),
    path(f"{ONE}/logs/archive", logs.archive),
    path(f"{ONE}/metrics", metrics.metrics, name="cluster_metrics"),
    path(f"{ONE}/metrics/plain", plain.plain),
    path(f"{ONE}/metrics/panels", panels.choose),
    path(f"{ONE}/metrics/charts", metrics.charts),
    path(f"{ONE}/metrics/media", media.media),
    path(f"{ONE}/metrics/machine", machine.charts),
    path(f"{ONE}/machine", machine.strip),
    path(f"{ONE}/usage", cluster.usage, name="cluster_usage"),
    path(f"{ONE}/cost", cluster.cost, name="cluster_cost"),
    path(f"{ONE}/runs", cluster.runs, name="cluster_runs"),
    path(f"{ONE}/runs/<int:run>/tasks/<slug:role>/<int:index>/terminal", terminal.terminal, name="terminal"),
    path(f"{ONE}/events", cluster.events, name="cluster_events"),
    path(f"{ONE}/manifest", cluster.manifest, name="cluster_manifest"),
    path(f"{ONE}/export", cluster.export, name="export_cluster"),
    path(f"{ONE}/change", new.change_cluster, name="change_cluster"),
    path(f"{ONE}/offers", offers.offers, name="cluster_offers"),
    path(f"{ONE}/change/input", new.changed_input, name="changed_input"),
    re_path(rf"^clusters/(?P<appcode>[-\w]+)/(?P<name>[-\w]+)/(?P<verb>{VERBS})\Z", verbs.act, name="act_on_cluster"),
]

REST: list[URLPattern | URLResolver] = [
    path("clusters", clusters.AllClusters.as_view()),
    path("appcodes/<slug:code>/clusters", clusters.AppcodeClusters.as_view()),
    path("appcodes/<slug:code>/preview", clusters.ClusterPreview.as_view()),
    path(REST_ONE, clusters.OneCluster.as_view()),
    *verb_paths(clusters.CLUSTER, REST_VERBS),
    path(f"{REST_ONE}/runs", clusters.Runs.as_view()),
    path(f"{REST_ONE}/runs/<int:run>", clusters.OneRun.as_view()),
    path(f"{REST_ONE}/runs/<int:run>/admission", clusters.RunAdmission.as_view()),
    path(f"{REST_ONE}/runs/<int:run>/machine", machine_api.RunMachine.as_view()),
    path(f"{REST_ONE}/runs/<int:run>/metrics", metrics_api.RunMetrics.as_view()),
    path(f"{REST_ONE}/runs/<int:run>/histograms", media_api.RunHistograms.as_view()),
    path(f"{REST_ONE}/runs/<int:run>/images", media_api.RunImages.as_view()),
    path(f"{REST_ONE}/runs/<int:run>/images/content", media_api.RunImage.as_view()),
    path(f"{REST_ONE}/runs/<int:run>/tasks", clusters.Tasks.as_view()),
    path(f"{REST_ONE}/runs/<int:run>/tasks/<slug:role>/<int:index>/log", logs_api.TaskLog.as_view()),
    path(f"{REST_ONE}/runs/<int:run>/log", logs_api.RunLog.as_view()),
    path(f"{REST_ONE}/runs/<int:run>/log/archive", logs_api.RunLogArchive.as_view()),
    path(f"{REST_ONE}/runs/<int:run>/tasks/<slug:role>/<int:index>/exec", exec_api.TaskExec.as_view()),
    path(f"{REST_ONE}/runs/<int:run>/tasks/<slug:role>/<int:index>/terminal", terminal_api.TaskTerminal.as_view()),
    path(f"{REST_ONE}/input", clusters.ClusterInput.as_view()),
    path(f"{REST_ONE}/usage", clusters.ClusterUsage.as_view()),
    path("queue", queue_api.QueueView.as_view()),
    path("shares", shares_api.SharesView.as_view()),
    path("serving-runtimes", clusters.ServingRuntimes.as_view()),
]
