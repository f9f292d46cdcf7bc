"""Incident bundles: what a failure looked like, kept in one small file that can be sent to somebody else.

`evidence` is what one node has to say, `bundle` the file, `redact` what never gets into it, `rails` the cables' past.
"""
