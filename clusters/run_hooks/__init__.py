"""Hooks: what is done before and after runs, by clusters of their own (clusters/after.py says what manifests say of them)."""
