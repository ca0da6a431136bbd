from django.apps import AppConfig


class BillingConfig(AppConfig):
    name = "billing"

    def ready(self) -> None:
        # Imported here because models do not exist before the apps are ready.
        from billing import mails, metrics
        from portal import metrics as portal_metrics
        from portal import notices

        portal_metrics.add(metrics.metrics)
        notices.send_with(mails.tell)
