"""The fleet as a whole: lease, peers, start and stop in order, recovery. Runs in the head's supervisor."""
