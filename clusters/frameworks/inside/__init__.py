"""Programs that run inside tasks. Tasks have none of our modules, so `programs.py` sends them as text; they import only the
standard library, each other, and what the image has."""
