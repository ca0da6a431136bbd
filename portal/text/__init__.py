"""Text and times as people read them."""
