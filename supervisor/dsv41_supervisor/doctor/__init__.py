"""`dsv41 doctor`: what every node looks like, judged before anyone waits twelve minutes for a rank.

`facts.py` is what one node's host says (the fabric's part is in `fabric/`), `read_*.py` reads it, `host_checks.py` and
`fleet_checks.py` judge it without any I/O, `ask.py` collects it from every node, `report.py` shows it. `deep/` sends
real traffic.
"""
