"""Pipelines: stages that wait for each other. Each stage is an ordinary cluster, hidden from lists (`Cluster.part_of`)."""
