"""Results: what every run came to, as a table that people sort, filter, group and share."""
