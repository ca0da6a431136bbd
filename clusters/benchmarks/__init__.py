"""The cluster benchmark: how well machines scale. Each measurement is a cluster, hidden from lists (`Cluster.part_of`)."""
