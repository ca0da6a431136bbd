from django.apps import AppConfig


class PortalConfig(AppConfig):
    name = "portal"

    def ready(self) -> None:
        from portal import metrics
        from portal.pages import accounts, appcodes, layout
        from portal.webhooks import metrics as webhook_metrics

        accounts.connect()
        metrics.add(webhook_metrics.metrics)
        layout.add_search("Appcodes", appcodes.find_appcodes)
        layout.add_search("People", appcodes.find_people)
