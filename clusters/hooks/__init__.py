"""Hooks: what is done before and after runs, by clusters of their own. manifest/hook_spec.py has what manifests say of them."""
