"""Schedules: clusters that are deployed, and pipelines that are run, at times that cron says."""
