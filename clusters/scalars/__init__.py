"""Scalars that a run reports while it trains (loss, accuracy, speed), from its TensorBoard event files or its printed output."""
