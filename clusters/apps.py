from django.apps import AppConfig
from django.db.models.signals import post_migrate


class ClustersConfig(AppConfig):
    name = "clusters"

    def ready(self) -> None:
        # Imported here because models do not exist before the apps are ready.
        from billing import hooks as billing_hooks
        from clusters import hooks, metrics, wakeups
        from clusters.applications import inside
        from clusters.clouds import health, registry
        from clusters.gateway import middleware
        from clusters.model_registry import access as model_registry
        from clusters.runs import folders, telling
        from clusters.spec import offers
        from clusters.volumes import lifecycle, metering
        from datastores import hooks as datastore_hooks
        from portal import hooks as portal_hooks

        middleware.inside.add(inside.say)
        post_migrate.connect(registry.keep_own, sender=self)
        post_migrate.connect(offers.keep_runtimes, sender=self)
        datastore_hooks.finders.add(hooks.clusters_using)
        datastore_hooks.finders.add(model_registry.models_using)
        datastore_hooks.outputs.add(folders.outputs)
        datastore_hooks.in_use.add(folders.in_use)
        datastore_hooks.judges.add(lifecycle.judge)
        datastore_hooks.volume_prices.add(metering.per_hour)
        billing_hooks.without_end.add(hooks.without_end)
        portal_hooks.metrics.add(metrics.metrics)
        portal_hooks.closed_networks.add(hooks.closed_networks)
        portal_hooks.gpu_use.add(hooks.gpus_held)
        portal_hooks.gpu_pool.add(hooks.gpu_pool)
        portal_hooks.steps.add(hooks.steps)
        portal_hooks.notes.add(health.notes)
        portal_hooks.searches.add(("Clusters", hooks.find_clusters))
        portal_hooks.searches.add(("Templates", hooks.find_templates))
        portal_hooks.searches.add(("Models", hooks.find_models))
        portal_hooks.given.add(wakeups.wake_waiting)
        portal_hooks.news.add(telling.news)
