from django.apps import AppConfig


class DatastoresConfig(AppConfig):
    name = "datastores"
