"""Setups and clients that several folders of the flow tests share."""
