from django.apps import AppConfig


class BillingConfig(AppConfig):
    name = "billing"

    def ready(self) -> None:
        # Imported here because models do not exist before the apps are ready.
        from billing import mails, sentences
        from billing.budgets import access, actions
        from billing.invoices import pages as invoices
        from billing.prices import book
        from billing.sums import metrics
        from portal import extension_points

        extension_points.steps.add(book.steps)
        extension_points.gpu_prices.add(book.gpu_prices)
        extension_points.metrics.add(metrics.metrics)
        extension_points.kinds.add(invoices.KIND)
        extension_points.sentences.add(sentences.costs)
        extension_points.mail.add(mails.tell)
        extension_points.budgets.add(access.amounts)
        extension_points.grant_budget.add(actions.grant)
