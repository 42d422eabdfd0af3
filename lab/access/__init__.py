"""What IAM says of a call that is signed with a role's or a user's keys.

`asked` is what IAM is asked about a request, `policy` and `conditions` judge it, `gate` answers.
"""
