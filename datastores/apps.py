from django.apps import AppConfig


class DatastoresConfig(AppConfig):
    name = "datastores"

    def ready(self) -> None:
        # Imported here because models do not exist before the apps are ready.
        from django.conf import settings

        from datastores import actions, exports, views
        from portal import hooks

        exports.parse(tuple(settings.NFS_SERVERS))
        hooks.volumes_gib.add(actions.volumes_gib)
        hooks.searches.add(("Datastores", views.find_datastores))
