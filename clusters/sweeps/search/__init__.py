"""The search for good parameters by Optuna: the next points, which trials go on, and which parameters matter. Pure."""
