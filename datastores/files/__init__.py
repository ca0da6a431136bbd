"""The files of a datastore, on pages and by REST: list, look at, send in, take out, move. Only drivers know where they lie."""
