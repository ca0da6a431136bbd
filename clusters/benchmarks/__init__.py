"""The cluster benchmark: how far machines scale. Each measurement is a cluster, hidden from lists (`Cluster.part_of`)."""
