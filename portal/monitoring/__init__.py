"""What operators see of the programs: health for probes, metrics for Prometheus, logs."""
