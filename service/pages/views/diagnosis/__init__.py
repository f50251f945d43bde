"""The page "Why": where the steps of a trial went."""
