"""Request router for services: forwards each request to a replica."""
