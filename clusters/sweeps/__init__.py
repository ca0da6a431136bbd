"""Sweeps: one definition trained many times, each time with different parameters."""
