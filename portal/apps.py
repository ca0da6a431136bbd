from django.apps import AppConfig


class PortalConfig(AppConfig):
    name = "portal"

    def ready(self) -> None:
        from portal import accounts, frame, metrics, views
        from portal.webhooks import metrics as webhook_metrics

        accounts.connect()
        metrics.add(webhook_metrics.metrics)
        frame.add_search("Appcodes", views.find_appcodes)
        frame.add_search("People", views.find_people)
