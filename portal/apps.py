from django.apps import AppConfig

# Celery tasks bind to it, so it must exist wherever Django runs. `manage.py up` and the node agent run without Django,
# which would double their memory.
from portal.celery import app as celery_app

__all__ = ["PortalConfig", "celery_app"]


class PortalConfig(AppConfig):
    name = "portal"

    def ready(self) -> None:
        from portal import extension_points
        from portal.pages import accounts, help_page, search
        from portal.webhooks import metrics

        accounts.connect()
        extension_points.metrics.add(metrics.metrics)
        extension_points.steps.add(help_page.steps)
        for kind in search.KINDS:
            extension_points.kinds.add(kind)
