"""Who may call: whose key a request is signed with, and what IAM says of the call.

`auth` checks the signature, `one_meaning` that a request can be read in one way only. `questions`
is what IAM is asked about a request, `iam_policy` and `conditions` judge it, `gate` answers.
"""
