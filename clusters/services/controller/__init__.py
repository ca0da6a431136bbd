"""Moves services towards their definitions: decides the next steps from observed values, and carries them out."""
