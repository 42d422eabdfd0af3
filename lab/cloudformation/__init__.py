"""CloudFormation of the lab, in front of moto, whose own needs packages that the lab does not have.

`template` reads templates and evaluates them, `kinds` knows how each type of resource is made,
changed and deleted (by the lab's own API, with the permissions of who asked), `stacks` does what a
stack needs in order, `change_sets` says what would change, `front` is the API. A type, a property
or an intrinsic function that the lab cannot do is refused, never skipped.
"""
