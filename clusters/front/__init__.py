"""Takes the requests to services and leads each to a replica."""
