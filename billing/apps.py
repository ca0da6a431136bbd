from django.apps import AppConfig


class BillingConfig(AppConfig):
    name = "billing"

    def ready(self) -> None:
        # Imported here because models do not exist before the apps are ready.
        from billing import mails
        from portal import notices

        notices.send_with(mails.tell)
