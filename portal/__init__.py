"""The Django project, and the ground that every app stands on (README.md). The version is that of the whole product."""

__version__ = "1.0.0"
