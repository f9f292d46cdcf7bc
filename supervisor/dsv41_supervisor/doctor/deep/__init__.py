"""`dsv41 doctor --deep`: real traffic on every rail, in each direction, through the supervisors at both ends.

`paths.py` says between which ends, `ping.py` `echo.py` `rdma.py` send it, `serve.py` is what a supervisor does for
another one, `session.py` is the order of it all. The collective is `dsv41_adapters/probe.py`: it needs torch, so it is
no file of the supervisor.
"""
