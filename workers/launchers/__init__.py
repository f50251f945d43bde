"""Ways to start the ranks of one trial and to be sure that they are gone afterwards."""
