"""`./invoke preflight`: asks the vendors' hosts for what a bake fetches, and launches nothing.

    demand(recipe)  → the files, repositories and packages that a bake of the recipe asks for
    ask(recipes)    → what the hosts answer, per recipe

Signatures are checked against the pinned fingerprints, and dependencies are resolved by apt and dnf
themselves, in a throwaway root.
"""
