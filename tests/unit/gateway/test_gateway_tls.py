"""TLS: what is served, how a renewed certificate gets in force, and which files are refused. Real handshakes."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from dsv41_supervisor.errors import Dsv41Error, Exit
from dsv41_supervisor.gateway.tls import Tls, TlsFiles
from dsv41_supervisor.smoke import ask

from tests.harness.certificates import der, make_certificate
from tests.unit.gateway.conftest import KEY, MODEL, bearer


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return TlsFiles(*make_certificate(tmp_path / "tls", "first"))


def trusting(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


async def served(port: int, **versions: ssl.TLSVersion) -> tuple[bytes, str]:
    """The certificate that a new connection gets, and the protocol's version."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    for name, version in versions.items():
        setattr(context, name, version)
    async with asyncio.timeout(20):
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        told = writer.get_extra_info("ssl_object")
        seen = told.getpeercert(binary_form=True), told.version()
        writer.close()
    return seen


async def start_tls(start: Any, files: TlsFiles, **more: Any) -> Any:
    fleet = await start(wait=False, tls=files, **more)
    fleet.url = fleet.url.replace("http://", "https://")
    return fleet


async def until_served(port: int, certificate: Path) -> None:
    async with asyncio.timeout(20):
        while (await served(port))[0] != der(certificate):
            await asyncio.sleep(0.02)


@pytest.mark.asyncio
async def test_answers_and_streams_go_over_tls_and_plain_http_gets_none(start: Any, files: TlsFiles) -> None:
    fleet = await start_tls(start, files)
    trusted = trusting(files.certificate)
    async with asyncio.timeout(20):
        while True:
            async with fleet.http.get(f"{fleet.url}/ready", ssl=trusted) as response:
                if response.status == 200:
                    break
    for stream in (False, True):
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": stream}
        async with fleet.http.post(
            f"{fleet.url}/v1/chat/completions", json=body, headers=bearer(KEY), ssl=trusted
        ) as response:
            assert response.status == 200 and (b"[DONE]" in await response.read()) is stream
    with pytest.raises(aiohttp.ClientError):
        await fleet.http.get(fleet.url.replace("https://", "http://") + "/health")
    assert len(fleet.engine.seen) == 2


@pytest.mark.asyncio
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_tls_is_1_2_or_newer(start: Any, files: TlsFiles) -> None:
    fleet = await start_tls(start, files)
    port = fleet.config.port
    assert (await served(port))[1] == "TLSv1.3"
    assert (await served(port, maximum_version=ssl.TLSVersion.TLSv1_2))[1] == "TLSv1.2"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await served(port, minimum_version=ssl.TLSVersion.TLSv1, maximum_version=ssl.TLSVersion.TLSv1_1)
    assert Tls(files).context.minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.asyncio
async def test_a_renewed_certificate_gets_in_force_while_a_stream_goes_on(
    start: Any, files: TlsFiles, tmp_path: Path
) -> None:
    fleet = await start_tls(start, files, certificate_s=0.02)
    fleet.supervisor.say()
    trusted = trusting(files.certificate)
    new_certificate, new_key = make_certificate(tmp_path / "tls", "second")
    port = fleet.config.port
    assert (await served(port))[0] == der(files.certificate)
    fleet.engine.behave = fleet.engine.stalls
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    async with asyncio.timeout(20):
        while True:
            response = await fleet.http.post(
                f"{fleet.url}/v1/chat/completions", json=body, headers=bearer(KEY), ssl=trusted
            )
            if response.status == 200:
                break
            await response.read()
    await response.content.readuntil(b"\n\n")
    # One of the two first, as renewing programs do it: what is no pair is not taken.
    shutil.copyfile(new_certificate, files.certificate)
    await asyncio.sleep(0.1)
    assert (await served(port))[0] != der(new_certificate)
    new_key.replace(files.key)
    await until_served(port, new_certificate)
    fleet.engine.release.set()
    assert b"[DONE]" in await response.read()


def test_files_that_turn_bad_keep_the_last_good_certificate_and_warn_once(
    files: TlsFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    other, _ = make_certificate(tmp_path / "tls", "other")
    good = files.certificate.read_bytes()
    tls = Tls(files)
    for spoil in (
        lambda: files.certificate.write_bytes(good[:300]),
        lambda: files.certificate.write_bytes(other.read_bytes()),
        files.certificate.unlink,
    ):
        caplog.clear()
        spoil()
        for _ in range(3):
            tls.reload()
        assert caplog.text.count("The last good certificate stays in force") == 1
    files.certificate.write_bytes(good)
    tls.reload()
    assert "read the certificate" in caplog.text and "PRIVATE KEY" not in caplog.text
    caplog.clear()
    tls.reload()
    assert caplog.text == ""
    tls.reload(always=True)
    assert "read the certificate" in caplog.text


def test_files_that_cannot_be_used_are_refused_with_the_reason(files: TlsFiles, tmp_path: Path) -> None:
    other = TlsFiles(*make_certificate(tmp_path / "tls", "other"))
    guarded = TlsFiles(*make_certificate(tmp_path / "tls", "guarded", passphrase="what-nobody-may-be-asked"))
    text = tmp_path / "text"
    text.write_text("no certificate\n")
    text.chmod(0o600)
    os.mkfifo(tmp_path / "pipe", 0o600)
    shown = TlsFiles(other.certificate, tmp_path / "shown.key")
    shutil.copyfile(other.key, shown.key)
    shown.key.chmod(0o644)
    for wrong, says in (
        (TlsFiles(tmp_path / "none", files.key), "cannot read"),
        (TlsFiles(files.certificate, tmp_path), "is not a file"),
        (TlsFiles(text, files.key), "are no certificate and private key"),
        (TlsFiles(files.certificate, text), "are no certificate and private key"),
        (TlsFiles(tmp_path / "pipe", files.key), "is not a file"),
        (TlsFiles(files.certificate, other.key), "does not belong to the certificate"),
        (guarded, "are no certificate and private key"),
        (shown, "can be read by every user (mode 0644)"),
    ):
        with pytest.raises(Dsv41Error) as refused:
            Tls(wrong)
        assert says in str(refused.value), str(refused.value)
        assert refused.value.exit_status is Exit.REFUSED


@pytest.mark.asyncio
async def test_smoke_gives_its_key_to_the_gateways_own_certificate_alone(
    start: Any, files: TlsFiles, tmp_path: Path
) -> None:
    fleet = await start_tls(start, files)
    other, _ = make_certificate(tmp_path / "tls", "other")
    with pytest.raises(Dsv41Error) as refused:
        await ask(fleet.url, KEY, MODEL, "hi", 8, lambda _: None, certificate=other)
    assert "CERTIFICATE_VERIFY_FAILED" in str(refused.value) and fleet.engine.seen == []
    with pytest.raises(Dsv41Error) as refused:
        await ask(fleet.url, KEY, MODEL, "hi", 8, lambda _: None, certificate=tmp_path / "none")
    assert "cannot be read" in str(refused.value)
    with pytest.raises(Dsv41Error) as refused:  # it got through: the scripted engine counts no tokens
        async with asyncio.timeout(20):
            while not fleet.engine.seen:
                await ask(fleet.url, KEY, MODEL, "hi", 8, lambda _: None, certificate=files.certificate)
    assert "without a token" in str(refused.value) or "not ready" in str(refused.value)
