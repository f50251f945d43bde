"""What a finished study shows: fronts and which knobs mattered. Decides nothing."""
