"""`manage.py up`: the whole portal on one machine (main.py). Other programs use parts of it, so nothing is imported here."""
