"""The attack on the pipeline that stays: kill points, faults of EC2, failing commands, bad input.

`./invoke test --all` runs it within a number of minutes and prints four figures. Each part walks a
list of cases that is far longer than the time: an even sample of it, another one in each run.
"""
