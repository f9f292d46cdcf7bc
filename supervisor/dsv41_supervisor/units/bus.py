"""The system bus: one kept connection, calls with a bound, and every failure as a sentence.

Calls are plain messages, not introspected proxies: that spares the daemon an XML document and its classes per object.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from dbus_fast import BusType, Message, MessageType, Variant
from dbus_fast.aio.message_bus import MessageBus

from ..errors import Dsv41Error, Stage
from ..journal import log

CALL_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 10.0
RECONNECT_S = 1.0
DRIVER = "org.freedesktop.DBus"
PROPERTIES = "org.freedesktop.DBus.Properties"


class BusRefused(Exception):
    """The other side answered with an error; `name` is its D-Bus name."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


class SystemBus:
    """A connection that comes back by itself. `connected` runs after each (re)connection, before calls of others."""

    def __init__(self, on_signal: Callable[[Message], None], connected: Callable[[], Awaitable[None]]) -> None:
        self._on_signal = on_signal
        self._connected = connected
        self._bus: MessageBus | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect for the first time. Raises Dsv41Error when there is no bus, or no systemd on it."""
        await self._connect()
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
        if self._bus is not None and self._bus.connected:
            self._bus.disconnect()

    async def call(self, to: str, path: str, interface: str, member: str, signature: str = "", *body: Any) -> list[Any]:
        """One method call. Raises BusRefused (an error came back) or Dsv41Error (no answer)."""
        bus = self._bus
        if bus is None or not bus.connected:
            raise _unreachable("the connection was lost")
        message = Message(
            destination=to, path=path, interface=interface, member=member, signature=signature, body=list(body)
        )
        try:
            reply = await asyncio.wait_for(bus.call(message), CALL_TIMEOUT_S)
        except TimeoutError:
            raise _unreachable(f"{to} did not answer {member} within {CALL_TIMEOUT_S:.0f} s") from None
        except (OSError, EOFError) as error:
            raise _unreachable(str(error) or type(error).__name__) from None
        if reply.message_type is MessageType.ERROR:
            raise BusRefused(reply.error_name or "", str(reply.body[0]) if reply.body else "no reason given")
        return list(reply.body)

    async def get(self, to: str, path: str, interface: str, name: str) -> Any:
        """One property, without its variant. Raises as `call`."""
        return plain((await self.call(to, path, PROPERTIES, "Get", "ss", interface, name))[0])

    async def match(self, rule: str) -> None:
        """Ask for signals; every one of them goes to `on_signal`."""
        await self.call(DRIVER, "/org/freedesktop/DBus", DRIVER, "AddMatch", "s", rule)

    # -- private -------------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        try:
            bus = MessageBus(bus_type=BusType.SYSTEM)
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await bus.connect()
        except Exception as error:
            # dbus-fast raises what the transport did: OSError, EOFError, AuthError, ValueError for a bad address.
            raise _unreachable(str(error) or type(error).__name__) from None
        bus.add_message_handler(self._hear)
        self._bus = bus
        await self._connected()

    def _hear(self, message: Message) -> bool | None:
        if message.message_type is MessageType.SIGNAL:
            self._on_signal(message)
        return None

    async def _keep(self) -> None:
        """Connect again whenever the connection is lost (the bus was restarted), until cancelled."""
        while True:
            assert self._bus is not None
            with contextlib.suppress(Exception):
                await self._bus.wait_for_disconnect()
            log.warning("the connection to the system bus was lost; connecting again")
            while True:
                try:
                    await self._connect()
                    log.info("connected to the system bus again")
                    break
                except (Dsv41Error, BusRefused) as error:
                    log.debug("%s", error)
                    await asyncio.sleep(RECONNECT_S)


def plain(value: Any) -> Any:
    """A value without the Variant around it."""
    return value.value if isinstance(value, Variant) else value


def _unreachable(why: str) -> Dsv41Error:
    return Dsv41Error(
        f"the system bus cannot be used: {why}.", stage=Stage.RANK, transient=True,
        hint="Check dbus.service (systemctl status dbus), or set supervisor.units to process on a machine without "
        "systemd.",
    )  # fmt: skip
