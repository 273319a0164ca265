"""End an asyncio server without losing a connection that it is about to accept."""

import asyncio


async def stop_listening(server: asyncio.Server) -> None:
    """Close the listening sockets; connections that are accepted belong to the server's callbacks.

    ``Server.close`` of Python 3.11 while a connection is on its way from the socket to its transport
    fails an assertion in ``Server._attach``, and leaves that connection open with nobody to close it.
    """
    loop = asyncio.get_running_loop()
    for socket in server.sockets:
        loop.remove_reader(socket.fileno())
    await asyncio.sleep(0)  # what was accepted gets its transport
    await asyncio.sleep(0)
    server.close()
