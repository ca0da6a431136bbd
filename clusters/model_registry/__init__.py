"""The model registry: a model's versions, their origins, and which version an alias named at any moment."""
