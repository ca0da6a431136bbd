from django.apps import AppConfig


class ClustersConfig(AppConfig):
    name = "clusters"

    def ready(self) -> None:
        # Imported here because models do not exist before the apps are ready.
        from billing.budgets import figures
        from clusters import hooks, metrics
        from clusters.volumes import lifecycle, metering
        from datastores import costs, placing, uses
        from portal import metrics as portal_metrics
        from portal.pages import layout
        from portal.webhooks import sending

        uses.add(hooks.clusters_using)
        placing.add(lifecycle.judge)
        costs.estimate_with(metering.per_hour)
        portal_metrics.add(metrics.metrics)
        sending.close_too(hooks.closed_networks)
        figures.tell_lasting_with(hooks.without_end)
        layout.count_gpus_with(hooks.gpus_held)
        layout.add_search("Clusters", hooks.find_clusters)
