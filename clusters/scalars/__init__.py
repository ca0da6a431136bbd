"""The numbers that a run tells by the way (loss, accuracy, speed): of its TensorBoard event files, or of what it prints."""
