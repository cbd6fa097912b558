# Sockets in every way that python has: threads, timeouts, select, poll, epoll, datagrams, names.
import select
import socket
import threading
import time

listener = socket.create_server(("127.0.0.1", 0))
address = listener.getsockname()


def serve():
    for _ in range(3):
        connection, _ = listener.accept()
        with connection:
            while data := connection.recv(4096):
                connection.sendall(data.upper())


server = threading.Thread(target=serve)
server.start()
for number in range(3):
    with socket.create_connection(address, timeout=30) as client:
        client.sendall(b"hello %d" % number)
        client.shutdown(socket.SHUT_WR)
        print(client.makefile("rb").read())
server.join()

left, right = socket.socketpair()
left.settimeout(0.05)
start = time.monotonic()
try:
    left.recv(1)
except TimeoutError as error:
    print("too late", error, time.monotonic() - start >= 0.05)
left.setblocking(False)
try:
    left.recv(1)
except BlockingIOError as error:
    print("would block", error.errno)
left.setblocking(True)
right.send(b"x")
print(len(select.select([left, right], [left], [], 30)[0]))
poll = select.poll()
poll.register(left, select.POLLIN)
print([events for _, events in poll.poll(30_000)])
with select.epoll() as epoll:
    epoll.register(left, select.EPOLLIN | select.EPOLLOUT)
    print([events for _, events in epoll.poll(30)])
print(left.recv(1), select.select([left], [], [], 0.01)[0])

one, other = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
one.bind(("127.0.0.1", 0))
other.sendto(b"datagram", one.getsockname())
print(one.recvfrom(100)[0])
print(socket.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM))
print(socket.getnameinfo(("127.0.0.1", 1), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV))
try:
    socket.create_connection(("127.0.0.1", 1), timeout=30)
except ConnectionRefusedError as error:
    print("refused", error.errno)
