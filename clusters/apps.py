from django.apps import AppConfig
from django.db.models.signals import post_migrate


class ClustersConfig(AppConfig):
    name = "clusters"

    def ready(self) -> None:
        # Imported here because models do not exist before the apps are ready.
        from billing import extension_points as billing_points
        from clusters import contributions, metrics, sentences, wakeups
        from clusters import search as searched
        from clusters.applications import notices
        from clusters.benchmarks import loop as benchmarks
        from clusters.catalog import actions as offers
        from clusters.clouds import health, registry
        from clusters.cluster.form.sources import sources
        from clusters.cluster.pages import living
        from clusters.cluster_templates import source as templates
        from clusters.gateway import middleware
        from clusters.model_registry import access as model_registry
        from clusters.pipelines import loop as pipelines
        from clusters.pipelines.pages import live as live_pipelines
        from clusters.recipes import RECIPES
        from clusters.runs import folders, idle
        from clusters.runs.status import notifications
        from clusters.services.pages import list as service_list
        from clusters.sweeps import notifications as search
        from clusters.sweeps import source as sweeps
        from clusters.sweeps.pages import list as sweep_list
        from clusters.volumes import lifecycle, metering
        from datastores import extension_points as datastore_points
        from portal import extension_points as portal_points

        middleware.inside.add(notices.say)
        post_migrate.connect(registry.keep_own, sender=self)
        post_migrate.connect(offers.keep_runtimes, sender=self)
        datastore_points.finders.add(contributions.clusters_using)
        datastore_points.finders.add(model_registry.models_using)
        datastore_points.outputs.add(folders.outputs)
        datastore_points.writers.add(folders.written_by)
        datastore_points.in_use.add(folders.in_use)
        datastore_points.judges.add(lifecycle.judge)
        datastore_points.volume_prices.add(metering.per_hour)
        billing_points.without_end.add(contributions.without_end)
        portal_points.metrics.add(metrics.metrics)
        portal_points.closed_networks.add(contributions.closed_networks)
        portal_points.gpu_use.add(contributions.gpus_held)
        portal_points.gpu_pool.add(contributions.gpu_pool)
        portal_points.steps.add(contributions.steps)
        portal_points.first_hour.add(contributions.first_hour)
        for recipe in RECIPES:
            portal_points.recipes.add(recipe)
        portal_points.notes.add(health.notes)
        for kind in searched.KINDS:
            portal_points.kinds.add(kind)
        for sentence in sentences.SENTENCES:
            portal_points.sentences.add(sentence)
        portal_points.given.add(wakeups.wake_waiting)
        portal_points.news.add(notifications.news)
        for told in (notifications.ENDS, notifications.LOSSES, idle.TOLD, search.TOLD, pipelines.TOLD, benchmarks.TOLD):
            portal_points.told.add(told)
        for live in (living.COMPUTING, living.APPLICATION, service_list.LIVE, sweep_list.LIVE, live_pipelines.LIVE):
            living.kinds.add(live)
        sources.add(sweeps.SOURCE)
        sources.add(templates.SOURCE)
