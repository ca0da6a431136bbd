from django.apps import AppConfig


class ClustersConfig(AppConfig):
    name = "clusters"

    def ready(self) -> None:
        # Imported here because models do not exist before the apps are ready.
        from billing import budget_figures
        from clusters import contributions, metrics, storage, volumes
        from datastores import costs, placing, uses
        from portal import frame
        from portal import metrics as portal_metrics
        from portal.webhooks import sending

        uses.add(contributions.clusters_using)
        placing.add(volumes.judge)
        costs.estimate_with(storage.per_hour)
        portal_metrics.add(metrics.metrics)
        sending.close_too(contributions.closed_networks)
        budget_figures.tell_lasting_with(contributions.without_end)
        frame.count_gpus_with(contributions.gpus_held)
        frame.add_search("Clusters", contributions.find_clusters)
