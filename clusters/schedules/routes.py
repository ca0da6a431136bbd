"""Addresses of this room: pages, and REST below /api/v1/."""

from django.urls import URLPattern, URLResolver, path

from clusters.schedules import api as schedules_api
from clusters.schedules import pages as schedules
from portal.api.verbs import verb_paths

SCHEDULE = "schedules/<slug:appcode>/<slug:name>"
REST_SCHEDULE = "appcodes/<slug:code>/schedules/<slug:name>"

PAGES: list[URLPattern | URLResolver] = [
    path("schedules", schedules.schedules, name="schedules"),
    path("schedules/new", schedules.new_schedule, name="new_schedule"),
    path("schedules/times", schedules.times, name="schedule_times"),
    path(SCHEDULE, schedules.schedule, name="schedule"),
    path(f"{SCHEDULE}/pause", schedules.pause, {"paused": True}, name="pause_schedule"),
    path(f"{SCHEDULE}/resume", schedules.pause, {"paused": False}, name="resume_schedule"),
    path(f"{SCHEDULE}/delete", schedules.delete, name="delete_schedule"),
]

REST: list[URLPattern | URLResolver] = [
    path("appcodes/<slug:code>/schedules", schedules_api.AppcodeSchedules.as_view()),
    path(REST_SCHEDULE, schedules_api.OneSchedule.as_view()),
    *verb_paths(schedules_api.KIND, schedules_api.VERBS),
]
