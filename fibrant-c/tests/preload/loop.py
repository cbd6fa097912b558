# asyncio: servers, clients, sleeps, threads, children and signals in one event loop.
import asyncio
import signal
import sys
import time


async def echo(reader, writer):
    while data := await reader.readline():
        writer.write(data.upper())
        await writer.drain()
    writer.close()


async def ask(port, number):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"line %d\n" % number)
    answer = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return answer


async def main():
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print(await asyncio.gather(*(ask(port, number) for number in range(20))))
    server.close()

    start = time.monotonic()
    await asyncio.gather(*(asyncio.sleep(0.05) for _ in range(100)))
    print(time.monotonic() - start >= 0.05)
    print(await asyncio.gather(*(asyncio.to_thread(sum, range(number)) for number in range(20))))
    try:
        await asyncio.wait_for(asyncio.Event().wait(), 0.02)
    except asyncio.TimeoutError:
        print("too late")

    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "print(input()[::-1])", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    print(await child.communicate(b"backwards\n"), child.returncode)
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, told.set)
    signal.raise_signal(signal.SIGUSR1)
    await asyncio.wait_for(told.wait(), 60)
    print("told")


asyncio.run(main())
