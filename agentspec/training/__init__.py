"""Training of what drafts from the inside of a target: Medusa heads, EAGLE layers, exit adapters.

The target is frozen, and teaches by what it says itself: its greedy continuations.
"""
