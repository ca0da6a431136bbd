"""What runs are doing: news of clouds as rows, and the phase, message and cost that follow from them."""
