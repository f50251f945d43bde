"""Launchers, which start the ranks of one trial and ensure that all of the ranks' processes have ended afterwards."""
