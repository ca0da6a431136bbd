from django.apps import AppConfig

# Tasks bind to it, so it is there wherever Django is; and not where Django is not, as in `manage.py up` and the node agent,
# which would hold twice the memory by it.
from portal.celery import app as celery_app

__all__ = ["PortalConfig", "celery_app"]


class PortalConfig(AppConfig):
    name = "portal"

    def ready(self) -> None:
        from portal import hooks
        from portal.pages import accounts, appcodes, help_page
        from portal.webhooks import metrics

        accounts.connect()
        hooks.metrics.add(metrics.metrics)
        hooks.steps.add(help_page.steps)
        hooks.searches.add(("Go to", appcodes.find_pages))
        hooks.searches.add(("Appcodes", appcodes.find_appcodes))
        hooks.searches.add(("People", appcodes.find_people))
