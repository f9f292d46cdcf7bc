"""Certificates for tests, made by openssl as an operator makes them."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest


def make_certificate(directory: Path, name: str, *, passphrase: str | None = None) -> tuple[Path, Path]:
    """Files of a self-signed certificate for 127.0.0.1 and of its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the program openssl")
    directory.mkdir(parents=True, exist_ok=True)
    certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
    guarded = ["-nodes"] if passphrase is None else ["-passout", f"pass:{passphrase}"]
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", *guarded,
            "-keyout", str(key), "-out", str(certificate), "-days", "3650", "-subj", f"/CN={name}",
            "-addext", "subjectAltName=IP:127.0.0.1",
        ],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    key.chmod(0o600)
    return certificate, key


def der(certificate: Path) -> bytes:
    """As a client sees it."""
    return ssl.PEM_cert_to_DER_cert(certificate.read_text())
