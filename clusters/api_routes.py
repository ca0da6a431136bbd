from django.urls import URLPattern, URLResolver, path

from clusters.api import (
    applications,
    clouds,
    clusters,
    environments,
    git_tokens,
    logs,
    notebooks,
    plugins,
    queue,
    terminal,
)
from clusters.api import exec as exec_api
from clusters.api.verbs import verb_paths

ONE = "appcodes/<slug:code>/clusters/<slug:name>"
APPLICATION = "appcodes/<slug:code>/applications/<slug:name>"

urlpatterns: list[URLPattern | URLResolver] = [
    path("clusters", clusters.AllClusters.as_view()),
    path("appcodes/<slug:code>/clusters", clusters.AppcodeClusters.as_view()),
    path("appcodes/<slug:code>/preview", clusters.ClusterPreview.as_view()),
    path(ONE, clusters.OneCluster.as_view()),
    *verb_paths(ONE, clusters.CLUSTER),
    path(f"{ONE}/runs", clusters.Runs.as_view()),
    path(f"{ONE}/runs/<int:run>", clusters.OneRun.as_view()),
    path(f"{ONE}/runs/<int:run>/tasks", clusters.Tasks.as_view()),
    path(f"{ONE}/runs/<int:run>/tasks/<slug:role>/<int:index>/log", logs.TaskLog.as_view()),
    path(f"{ONE}/runs/<int:run>/log", logs.RunLog.as_view()),
    path(f"{ONE}/runs/<int:run>/log/archive", logs.RunLogArchive.as_view()),
    path(f"{ONE}/runs/<int:run>/tasks/<slug:role>/<int:index>/exec", exec_api.TaskExec.as_view()),
    path(f"{ONE}/runs/<int:run>/tasks/<slug:role>/<int:index>/terminal", terminal.TaskTerminal.as_view()),
    path(f"{ONE}/usage", clusters.ClusterUsage.as_view()),
    path(f"{ONE}/tensorboard", applications.TensorBoard.as_view()),
    path(f"{ONE}/notebook", notebooks.OpenInNotebook.as_view()),
    path("applications", applications.AllApplications.as_view()),
    path("appcodes/<slug:code>/applications", applications.AppcodeApplications.as_view()),
    path(APPLICATION, applications.OneApplication.as_view()),
    *verb_paths(APPLICATION, applications.APPLICATION),
    path(f"{APPLICATION}/access", applications.Access.as_view()),
    path(f"{APPLICATION}/access/refresh", applications.RefreshAccess.as_view()),
    path(f"{APPLICATION}/access/stop", applications.StopAccess.as_view()),
    path(f"{APPLICATION}/run", notebooks.RunNotebook.as_view()),
    path(f"{APPLICATION}/environment", environments.SaveEnvironment.as_view()),
    path("appcodes/<slug:code>/git-tokens", git_tokens.AppcodeGitTokens.as_view()),
    path("appcodes/<slug:code>/git-tokens/<str:host>", git_tokens.OneGitToken.as_view()),
    path("appcodes/<slug:code>/environments", environments.AppcodeEnvironments.as_view()),
    path("appcodes/<slug:code>/environments/<slug:name>", environments.OneEnvironment.as_view()),
    path("appcodes/<slug:code>/environments/<slug:name>/context", environments.BuildContext.as_view()),
    path("queue", queue.QueueView.as_view()),
    path("flavors", clusters.Flavors.as_view()),
    path("images", clusters.Images.as_view()),
    path("images/<slug:image>/plugins", plugins.ImagePlugins.as_view()),
    path("images/<slug:image>/plugins/<slug:name>", plugins.OnePlugin.as_view()),
    path("kubernetes", clouds.Clusters.as_view()),
    path("kubernetes/<slug:name>", clouds.OneCluster.as_view()),
    path("kubernetes/<slug:name>/test", clouds.Test.as_view()),
    path("kubernetes/<slug:name>/give-up", clouds.GiveUp.as_view()),
    path("placements", clouds.Placements.as_view()),
    path("placements/<str:path>", clouds.OnePlacement.as_view()),
]
