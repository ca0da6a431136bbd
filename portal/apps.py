from django.apps import AppConfig


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
