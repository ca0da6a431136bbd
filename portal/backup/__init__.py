"""`manage.py backup FILE` and `manage.py restore FILE`: everything that a portal keeps, in one encrypted file.

    main.py       the two commands: arguments, passphrase, messages
    save.py       backup: what goes into the file, in which order
    load.py       restore: checks first, then a folder beside, then renames
    archive.py    the file: age around tar
    database.py   pg_dump and pg_restore
    storage.py    the folder of the portal's own object storage, as it is at one moment
    buckets.py    the same buckets on an S3 server of one's own
    source.py     which servers and secrets a portal has

Nothing here imports Django: `restore` runs where no portal does, and both also work where only environment variables hold the
settings.
"""
