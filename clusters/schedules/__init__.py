"""Schedules deploy clusters and run pipelines at cron times."""
