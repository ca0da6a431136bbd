from django.urls import URLPattern, URLResolver, path, re_path

from clusters.pages import act, clouds, cluster, create, listing, logs, metrics, offers

# The address of a cluster has two parts behind "clusters", that of a page about all of them has one: neither hides the other.
ONE = "clusters/<slug:appcode>/<slug:name>"
VERBS = "|".join(act.ACTS)

urlpatterns: list[URLPattern | URLResolver] = [
    path("", listing.clusters, name="clusters"),
    path("clusters/rows", listing.rows, name="cluster_rows"),
    path("clusters/spent", listing.spent, name="clusters_spent"),
    path("clusters/new", create.new_cluster, name="new_cluster"),
    path("clusters/preview", create.preview_cluster, name="preview_cluster"),
    path("clusters/import", create.import_clusters, name="import_clusters"),
    path("clusters/datastores", create.datastore_choices, name="datastore_choices"),
    path(ONE, cluster.overview, name="cluster"),
    path(f"{ONE}/head", cluster.head),
    path(f"{ONE}/progress", cluster.progress),
    path(f"{ONE}/logs", logs.logs, name="cluster_logs"),
    path(f"{ONE}/logs/read", logs.read),
    path(f"{ONE}/logs/download", logs.download),
    path(f"{ONE}/metrics", metrics.metrics, name="cluster_metrics"),
    path(f"{ONE}/metrics/charts", metrics.charts),
    path(f"{ONE}/usage", cluster.usage, name="cluster_usage"),
    path(f"{ONE}/cost", cluster.cost, name="cluster_cost"),
    path(f"{ONE}/runs", cluster.runs, name="cluster_runs"),
    path(f"{ONE}/events", cluster.events, name="cluster_events"),
    path(f"{ONE}/manifest", cluster.manifest, name="cluster_manifest"),
    path(f"{ONE}/export", cluster.export, name="export_cluster"),
    path(f"{ONE}/change", create.change_cluster, name="change_cluster"),
    re_path(rf"^clusters/(?P<appcode>[-\w]+)/(?P<name>[-\w]+)/(?P<verb>{VERBS})\Z", act.act, name="act_on_cluster"),
    path("admin/flavors", offers.flavors, name="admin_flavors"),
    path("admin/flavors/new", offers.flavor, name="admin_new_flavor"),
    path("admin/flavors/<slug:name>", offers.flavor, name="admin_flavor"),
    path("admin/clouds", clouds.clouds, name="admin_clouds"),
    path("admin/clouds/new", clouds.cloud, name="admin_new_cloud"),
    path("admin/clouds/place", clouds.place, name="admin_place"),
    path("admin/clouds/<slug:name>/edit", clouds.cloud, name="admin_cloud"),
    path("admin/clouds/<slug:name>/test", clouds.test, name="admin_test_cloud"),
    path("admin/clouds/<slug:name>/give-up", clouds.give_up, name="admin_give_up_cloud"),
    re_path(
        r"^admin/clouds/(?P<name>[-\w]+)/(?P<verb>enable|disable|default|remove)\Z",
        clouds.act,
        name="admin_act_on_cloud",
    ),
    path("admin/images", offers.images, name="admin_images"),
    path("admin/images/new", offers.image, name="admin_new_image"),
    path("admin/images/<slug:name>", offers.image, name="admin_image"),
]
