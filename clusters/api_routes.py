from django.urls import URLPattern, URLResolver, path

from clusters import api, exec_api, kubernetes_api, log_api

ONE = "appcodes/<slug:code>/clusters/<slug:name>"

urlpatterns: list[URLPattern | URLResolver] = [
    path("clusters", api.AllClusters.as_view()),
    path("appcodes/<slug:code>/clusters", api.AppcodeClusters.as_view()),
    path("appcodes/<slug:code>/preview", api.ClusterPreview.as_view()),
    path(ONE, api.OneCluster.as_view()),
    path(f"{ONE}/deploy", api.Deploy.as_view()),
    path(f"{ONE}/disable", api.Disable.as_view()),
    path(f"{ONE}/cancel", api.Cancel.as_view()),
    path(f"{ONE}/runs", api.Runs.as_view()),
    path(f"{ONE}/runs/<int:run>", api.OneRun.as_view()),
    path(f"{ONE}/runs/<int:run>/tasks", api.Tasks.as_view()),
    path(f"{ONE}/runs/<int:run>/tasks/<slug:role>/<int:index>/log", log_api.TaskLog.as_view()),
    path(f"{ONE}/runs/<int:run>/tasks/<slug:role>/<int:index>/exec", exec_api.TaskExec.as_view()),
    path(f"{ONE}/usage", api.ClusterUsage.as_view()),
    path("flavors", api.Flavors.as_view()),
    path("images", api.Images.as_view()),
    path("kubernetes", kubernetes_api.Clusters.as_view()),
    path("kubernetes/<slug:name>", kubernetes_api.OneCluster.as_view()),
    path("kubernetes/<slug:name>/test", kubernetes_api.Test.as_view()),
    path("kubernetes/<slug:name>/give-up", kubernetes_api.GiveUp.as_view()),
    path("placements", kubernetes_api.Placements.as_view()),
    path("placements/<str:path>", kubernetes_api.OnePlacement.as_view()),
]
