"""Known ways to fail, and what to change: each looks at what a trial printed, and makes the next plan of it.

A repair proposes; whether it helped, the next trial tells. Repairs that would not change anything propose nothing, so
that a search over them ends.
"""
