from django.apps import AppConfig
from django.db.models.signals import post_migrate


class DatastoresConfig(AppConfig):
    name = "datastores"

    def ready(self) -> None:
        # Imported here because models do not exist before the apps are ready.
        from django.conf import settings

        from datastores import actions, exports
        from datastores.pages import views
        from datastores.storage.actions import follow_server
        from portal import extension_points

        post_migrate.connect(follow_server, sender=self)
        exports.parse(tuple(settings.NFS_SERVERS))
        extension_points.volumes_gib.add(actions.volumes_gib)
        extension_points.kinds.add(views.KIND)
