"""The model registry: which versions a model has, from where each came, and which of them an alias named at any moment."""
