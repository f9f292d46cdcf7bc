"""One example for every command, shown at the end of its help."""

from __future__ import annotations

EXAMPLES = {
    "demo": "dsv41 demo --engine scripted --once",
    "doctor": "dsv41 doctor --deep",
    "up": "dsv41 up --override rail-mtu",
    "down": "dsv41 down",
    "drain": "dsv41 drain --timeout 120",
    "pause": "dsv41 pause",
    "resume": "dsv41 resume",
    "status": "dsv41 status --decisions 50",
    "logs": "dsv41 logs spark2 --lines 200",
    "incident": "dsv41 incident show",
    "smoke": "dsv41 smoke --prompt 'What is 19 + 23?'",
    "key": "dsv41 key new laptop requests=4 effort=low",
    "pack": "dsv41 pack --verify --sample 8",
    "adapters": "dsv41 adapters --json",
    "check-config": "dsv41 check-config settings.json",
    "schema": "dsv41 schema",
    "supervisor": "dsv41 supervisor --node spark1 --log-level debug",
    "guard": "dsv41 guard --node spark1",
    "rank": "dsv41 rank 1 --node spark2",
    "probe": "dsv41 probe --node spark1",
    "container": "dsv41 container --node spark1",
    "gateway": "dsv41 gateway --node spark1",
}
