# Fifty threads that share queues, locks, conditions, barriers and what is theirs alone.
import collections
import queue
import threading
import time

COUNT = 50
todo, done = queue.Queue(10), queue.Queue()
own = threading.local()
barrier = threading.Barrier(COUNT)
condition = threading.Condition()
few = threading.BoundedSemaphore(3)
total = 0


def work(number):
    global total
    own.number = number
    barrier.wait()
    while (item := todo.get()) is not None:
        with few:
            with condition:
                total += item
                condition.notify_all()
        done.put(item * item)
    assert own.number == number


workers = [threading.Thread(target=work, args=(number,)) for number in range(COUNT)]
for worker in workers:
    worker.start()
for item in range(2000):
    todo.put(item)
with condition:
    assert condition.wait_for(lambda: total == sum(range(2000)), 60)
for _ in workers:
    todo.put(None)
for worker in workers:
    worker.join()
print(total, sum(done.get() for _ in range(2000)), done.empty(), threading.active_count())

start = time.monotonic()
print(threading.Event().wait(0.05), time.monotonic() - start >= 0.05)
start = time.monotonic()
time.sleep(0.05)
print(time.monotonic() - start >= 0.05)
lock = threading.Lock()
lock.acquire()
print(lock.acquire(timeout=0.01), lock.acquire(blocking=False))
timer = threading.Timer(0.01, lock.release)
timer.start()
print(lock.acquire(timeout=30))
print(collections.Counter(type(worker).__name__ for worker in workers))
