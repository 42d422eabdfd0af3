"""Systems Manager: parameters, agents that register, and commands that run in the guests.

`models` keeps them, `responses` answers the calls, `documents` says what a document does, `agents`
knows the guests' agents, `commands` the commands that were sent. moto keeps the documents.
"""
