"""The pages of benchmarks."""
