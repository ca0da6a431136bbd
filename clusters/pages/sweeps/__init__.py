"""The pages of sweeps."""
