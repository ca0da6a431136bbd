from django.apps import AppConfig


class DatastoresConfig(AppConfig):
    name = "datastores"

    def ready(self) -> None:
        # Imported here because models do not exist before the apps are ready.
        from datastores import views
        from portal import frame

        frame.add_search("Datastores", views.find_datastores)
