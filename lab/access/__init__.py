"""Who may call: whose key a request is signed with.

`auth` checks the signature, `one_meaning` that a request can be read in one way only.
"""
