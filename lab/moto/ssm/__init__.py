"""Systems Manager of the lab: agents that register, and commands that run in the guests.

`front` takes the calls, `documents` says what a document does, `agents` knows the guests' agents,
`commands` the commands that were sent. Parameters and documents are moto's.
"""
