"""The pages of the model registry."""
