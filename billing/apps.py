from django.apps import AppConfig


class BillingConfig(AppConfig):
    name = "billing"

    def ready(self) -> None:
        # Imported here because models do not exist before the apps are ready.
        from billing import mails
        from billing.budgets import access, turn
        from billing.prices import book
        from billing.sums import metrics
        from portal import hooks

        hooks.steps.add(book.steps)
        hooks.gpu_prices.add(book.gpu_prices)
        hooks.metrics.add(metrics.metrics)
        hooks.mail.add(mails.tell)
        hooks.budgets.add(access.amounts)
        hooks.grant_budget.add(turn.grant)
