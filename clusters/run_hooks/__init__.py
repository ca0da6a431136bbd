"""Hooks: what is done after runs, by clusters of their own (clusters/after.py says what manifests say of them)."""
