from django.apps import AppConfig

# Celery tasks bind to it, so it must exist wherever Django runs. `manage.py up` and the node agent run without Django,
# which would double their memory.
from portal.celery import app as celery_app

__all__ = ["PortalConfig", "celery_app"]


class PortalConfig(AppConfig):
    name = "portal"

    def ready(self) -> None:
        from portal import extension_points
        from portal.pages import accounts, appcodes, help_page
        from portal.webhooks import metrics

        accounts.connect()
        extension_points.metrics.add(metrics.metrics)
        extension_points.steps.add(help_page.steps)
        extension_points.searches.add(("Go to", appcodes.find_pages))
        extension_points.searches.add(("Appcodes", appcodes.find_appcodes))
        extension_points.searches.add(("People", appcodes.find_people))
