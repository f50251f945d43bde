"""What a rank measures about itself: time and memory."""
