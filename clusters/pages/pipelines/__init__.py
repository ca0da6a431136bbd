"""The pages of pipelines."""
