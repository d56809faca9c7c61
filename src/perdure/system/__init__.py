"""The machine and the process: clock, disk, lease holders, fault points, and the flow with its blocking driver.

Also the rules for names, URLs and wording that every layer shares. May import errors, model and protocols only.
Read ``flow`` first: everything that waits is written as one.
"""
