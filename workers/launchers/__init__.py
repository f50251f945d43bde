"""Launchers, which start the ranks of one trial and make sure that they are gone afterwards."""
