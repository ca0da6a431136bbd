"""Addresses of this room: pages, and REST below /api/v1/."""

from django.urls import URLPattern, URLResolver, path

from clusters.model_registry.api import models as models_api
from clusters.model_registry.api import retention
from clusters.model_registry.pages import list as models
from clusters.model_registry.pages import model
from clusters.model_registry.pages import retention as model_retention
from clusters.model_registry.pages import verbs as model_acts

MODEL = "models/<slug:appcode>/<slug:name>"
REST_MODEL = "appcodes/<slug:code>/models/<slug:name>"

PAGES: list[URLPattern | URLResolver] = [
    path("models", models.models, name="models"),
    path("models/register", model_acts.register, name="register_model"),
    path(MODEL, model.model, name="model"),
    path(f"{MODEL}/rows", model.rows, name="model_rows"),
    path(f"{MODEL}/history", model.history, name="model_history"),
    path(f"{MODEL}/retention", model_retention.retention, name="model_retention"),
    path(f"{MODEL}/retention/remove", model_retention.forget, name="forget_model_retention"),
    path(f"{MODEL}/compare", model.compare, name="compare_versions"),
    path(f"{MODEL}/move", model_acts.move, name="move_alias"),
    path(f"{MODEL}/delete", model_acts.delete, name="delete_model"),
    path(f"{MODEL}/aliases/<slug:alias>/remove", model_acts.remove, name="remove_alias"),
    path(f"{MODEL}/versions/<int:number>", model.version, name="model_version"),
    path(f"{MODEL}/versions/<int:number>/live", model.version_live, name="model_version_live"),
    path(f"{MODEL}/versions/<int:number>/mlflow", model.version_mlflow, name="model_mlflow"),
    path(f"{MODEL}/versions/<int:number>/verify", model_acts.verify, name="verify_version"),
    path(f"{MODEL}/versions/<int:number>/delete", model_acts.delete_version, name="delete_version"),
]

REST: list[URLPattern | URLResolver] = [
    path("models", models_api.AllModels.as_view()),
    path("appcodes/<slug:code>/models", models_api.AppcodeModels.as_view()),
    path(REST_MODEL, models_api.OneModel.as_view()),
    path(f"{REST_MODEL}/versions", models_api.Versions.as_view()),
    path(f"{REST_MODEL}/versions/<int:number>", models_api.OneVersion.as_view()),
    path(f"{REST_MODEL}/versions/<int:number>/verify", models_api.VerifyVersion.as_view()),
    path(f"{REST_MODEL}/versions/<int:number>/mlflow", models_api.VersionOfMlflow.as_view()),
    path(f"{REST_MODEL}/aliases", models_api.Aliases.as_view()),
    path(f"{REST_MODEL}/aliases/<slug:alias>", models_api.OneAlias.as_view()),
    path(f"{REST_MODEL}/history", models_api.History.as_view()),
    path(f"{REST_MODEL}/retention", retention.Retention.as_view()),
    path(f"{REST_MODEL}/retention/preview", retention.PreviewRetention.as_view()),
]
