"""CodeBuild of the lab: projects are kept as they are asked for, and no build ever runs.

moto's own CodeBuild says of every build that it has succeeded, forgets half of a project's fields
and cannot change one. Here a call that would start a build is refused.
"""
