"""Forms by which clusters are made: New Cluster and Import."""
