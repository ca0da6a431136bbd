"""What one installation of the portal remembers of itself: its version, its secret key, and whether it is a demonstration."""
