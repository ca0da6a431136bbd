from django.apps import AppConfig


class PortalConfig(AppConfig):
    name = "portal"

    def ready(self) -> None:
        from portal import accounts, frame, views

        accounts.connect()
        frame.add_search("Appcodes", views.find_appcodes)
        frame.add_search("People", views.find_people)
