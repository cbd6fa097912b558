# Signals: handlers, waits for them, and what they interrupt.
import os
import select
import signal
import threading
import time

seen = []
signal.signal(signal.SIGALRM, lambda number, _: seen.append(signal.Signals(number).name))
signal.signal(signal.SIGUSR1, lambda number, _: seen.append(signal.Signals(number).name))
# Again and again, for one may come before it is waited for.
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
signal.pause()
signal.setitimer(signal.ITIMER_REAL, 0)
print(set(seen))
seen.clear()
os.kill(os.getpid(), signal.SIGUSR1)
print(seen)
# A handler runs while something is waited for, which then goes on.
signal.setitimer(signal.ITIMER_REAL, 0.02)
start = time.monotonic()
time.sleep(0.1)
print(seen, time.monotonic() - start >= 0.1)
readable, writable = os.pipe()
signal.setitimer(signal.ITIMER_REAL, 0.02)
print(select.select([readable], [], [], 0.1)[0], seen)
signal.setitimer(signal.ITIMER_REAL, 0.02)
threading.Timer(0.1, os.write, (writable, b"late")).start()
print(os.read(readable, 10), seen)


def interrupt(number, _):
    raise InterruptedError("a handler may raise")


signal.signal(signal.SIGALRM, interrupt)
try:
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    os.read(readable, 1)
except InterruptedError as error:
    print(error)

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
print(signal.sigtimedwait([signal.SIGUSR2], 0.02))
os.kill(os.getpid(), signal.SIGUSR2)
print(signal.sigpending() == {signal.SIGUSR2}, signal.sigwait([signal.SIGUSR2]).name)
os.kill(os.getpid(), signal.SIGUSR2)
print(signal.sigwaitinfo([signal.SIGUSR2]).si_signo == signal.SIGUSR2)
waiter = threading.Thread(target=lambda: print(signal.sigwait([signal.SIGUSR2]).name))
waiter.start()
signal.pthread_kill(waiter.ident, signal.SIGUSR2)
waiter.join()
reader, writer = os.pipe()
os.set_blocking(writer, False)
signal.set_wakeup_fd(writer)
os.kill(os.getpid(), signal.SIGUSR1)
print(os.read(reader, 10) == bytes([signal.SIGUSR1]), seen)
