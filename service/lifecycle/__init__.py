"""State machines of studies, trials and runs: transitions, ends of attempts, expiry, applying planned steps. Planning
lives in `planning`.
"""
