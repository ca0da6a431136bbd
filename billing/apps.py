from django.apps import AppConfig


class BillingConfig(AppConfig):
    name = "billing"

    def ready(self) -> None:
        # Imported here because models do not exist before the apps are ready.
        from billing import history, mails
        from billing.prices import book
        from billing.sums import metrics
        from portal import costs, examples, notices
        from portal import metrics as portal_metrics

        costs.price_gpus_with(book.gpu_prices)
        examples.known_by(history.is_generated)
        portal_metrics.add(metrics.metrics)
        notices.send_with(mails.tell)
