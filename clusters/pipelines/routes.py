"""Addresses of this room: pages, and REST below /api/v1/."""

from django.urls import URLPattern, URLResolver, path

from clusters.pipelines import api as pipelines_api
from clusters.pipelines.pages import form as pipeline_form
from clusters.pipelines.pages import pipelines
from portal.api.verbs import verb_paths

PIPELINE = "pipelines/<slug:appcode>/<slug:name>"
REST_PIPELINE = "appcodes/<slug:code>/pipelines/<slug:name>"

PAGES: list[URLPattern | URLResolver] = [
    path("pipelines", pipelines.pipelines, name="pipelines"),
    path("pipelines/new", pipeline_form.new_pipeline, name="new_pipeline"),
    path(PIPELINE, pipelines.pipeline, name="pipeline"),
    path(f"{PIPELINE}/progress", pipelines.progress),
    path(f"{PIPELINE}/change", pipeline_form.change_pipeline, name="change_pipeline"),
    path(f"{PIPELINE}/run", pipelines.run, name="run_pipeline"),
    path(f"{PIPELINE}/pause", pipelines.pause, name="pause_pipeline"),
    path(f"{PIPELINE}/resume", pipelines.resume, name="resume_pipeline"),
    path(f"{PIPELINE}/cancel", pipelines.cancel, name="cancel_pipeline"),
    path(f"{PIPELINE}/delete", pipelines.delete, name="delete_pipeline"),
    path(f"{PIPELINE}/retry/<slug:stage>", pipelines.retry, name="retry_stage"),
]

REST: list[URLPattern | URLResolver] = [
    path("pipelines", pipelines_api.AllPipelines.as_view()),
    path("appcodes/<slug:code>/pipelines", pipelines_api.AppcodePipelines.as_view()),
    path(REST_PIPELINE, pipelines_api.OnePipeline.as_view()),
    path(f"{REST_PIPELINE}/run", pipelines_api.RunPipeline.as_view()),
    *verb_paths(pipelines_api.KIND, pipelines_api.VERBS),
    path(f"{REST_PIPELINE}/retry", pipelines_api.RetryStage.as_view()),
    path(f"{REST_PIPELINE}/runs", pipelines_api.PipelineRuns.as_view()),
    path(f"{REST_PIPELINE}/runs/<int:run>", pipelines_api.OnePipelineRun.as_view()),
]
