"""Words of a study's answer: its verdict, single reasons to believe it, and how its figures were measured."""
