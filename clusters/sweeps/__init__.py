"""Sweeps: one definition trained many times, each time with other parameters."""
