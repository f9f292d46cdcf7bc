"""TLS by certificate files, read again when they change: a renewed certificate needs no restart."""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path

from ..errors import Dsv41Error, Stage
from ..journal import log


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The certificate with its chain, and its private key, both PEM."""

    certificate: Path
    key: Path


class Tls:
    """The certificate in force. New connections get it; those there are keep what they began with.

    Files that turned bad (gone, half-written, one renewed and not yet the other) leave the last good certificate
    in force and are named in the log once.
    """

    def __init__(self, files: TlsFiles) -> None:
        """Raises Dsv41Error when the files cannot be used."""
        self.files = files
        self._stamp = _stamp(files)
        self.context = _load(files)
        self._bad: object = None

    def reload(self, *, always: bool = False) -> None:
        """Read the files again if they have changed, or in any case."""
        stamp = _stamp(self.files)
        if stamp in (self._stamp, self._bad) and not always:
            return
        try:
            _load(self.files)  # into a context of its own first: half of a bad pair would stay in ours
            self.context.load_cert_chain(self.files.certificate, self.files.key, _no_passphrase)
        except (Dsv41Error, OSError) as error:
            self._bad = stamp
            log.warning("%s The last good certificate stays in force.", error)
        else:
            self._stamp, self._bad = stamp, None
            log.info("read the certificate %s again", self.files.certificate)

    async def watch(self, every_s: float) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            self.reload()


def _load(files: TlsFiles) -> ssl.SSLContext:
    """Raises Dsv41Error with the file and what is wrong with it."""
    for path in (files.certificate, files.key):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            hint = "The gateway's user must be able to read gateway.tls.certificate and gateway.tls.key_file."
            raise _refused(f"cannot read {path}: {error.strerror}.", hint) from None
        mode = os.fstat(descriptor).st_mode
        os.close(descriptor)
        if not stat.S_ISREG(mode):  # OpenSSL would wait for a pipe
            hint = "Name PEM files in gateway.tls.certificate and gateway.tls.key_file."
            raise _refused(f"{path} is not a file.", hint)
        if path == files.key and mode & stat.S_IROTH:
            raise _refused(
                f"the private key {path} can be read by every user (mode {stat.S_IMODE(mode):04o}).",
                f"Run chmod 600 {path}, and change the key if others use this machine.",
            )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(files.certificate, files.key, _no_passphrase)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None)
        if reason == "KEY_VALUES_MISMATCH":
            what = f"the private key {files.key} does not belong to the certificate {files.certificate}."
            raise _refused(what, "Name the two that were made together.") from None
        what = f"{files.certificate} and {files.key} are no certificate and private key"
        hint = "Both are PEM, the certificate with its chain, the key without a passphrase."
        raise _refused(f"{what}{f' ({reason})' if reason else ''}.", hint) from None
    return context


def _no_passphrase() -> str:
    """OpenSSL would ask the terminal for one, and wait."""
    return ""


def _stamp(files: TlsFiles) -> tuple[object, ...]:
    stamps: list[object] = []
    for path in (files.certificate, files.key):
        try:
            found = os.stat(path)
            stamps.append((found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
        except OSError as error:
            stamps.append(error.errno)
    return tuple(stamps)


def _refused(what: str, hint: str) -> Dsv41Error:
    return Dsv41Error(what, stage=Stage.GATEWAY, hint=hint)
