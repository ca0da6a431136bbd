"""Pages of clusters, thin: read the address, check access, act, render. One module a page."""
