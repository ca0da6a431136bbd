"""Files of a datastore, on pages and by REST: list, view, upload, download, move. Only drivers know where they are stored."""
