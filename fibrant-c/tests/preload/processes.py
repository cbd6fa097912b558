# Children by every means, their environment, pipes, locks and the semaphores that processes share.
import ctypes
import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile

print(subprocess.run(["cat"], input=b"through a pipe", capture_output=True, check=True).stdout)
print(subprocess.run("exit 7", shell=True).returncode)
print(subprocess.run(["sleep", "600"], preexec_fn=lambda: signal.alarm(1)).returncode)
try:
    subprocess.run(["sleep", "600"], timeout=0.1)
except subprocess.TimeoutExpired as error:
    print("expired", error.cmd)
pipeline = subprocess.Popen(["sort", "-n"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
print(pipeline.communicate("".join(f"{number * 7919 % 10007}\n" for number in range(10000)))[0].count("\n"))
print(os.popen("echo popen; exit 3").read(), os.system("exit 5"))

os.environ["FIBRANT_TEST_A"] = "from python"
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
print(libc.getenv(b"FIBRANT_TEST_A"), libc.setenv(b"FIBRANT_TEST_B", b"from C", 1))
sys.stdout.flush()
subprocess.run("echo $FIBRANT_TEST_A, $FIBRANT_TEST_B", shell=True)
print(libc.unsetenv(b"FIBRANT_TEST_B"), libc.getenv(b"FIBRANT_TEST_B"), libc.getenv(b"FIBRANT_TEST_C"))
del os.environ["FIBRANT_TEST_A"]
print(libc.getenv(b"FIBRANT_TEST_A"))

readable, writable = os.pipe()
child = os.fork()
if child == 0:
    os.write(writable, b"from a fork")
    os.execvp("sh", ["sh", "-c", "exit 9"])
os.close(writable)
print(os.read(readable, 100), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), os.read(readable, 1))
child = os.posix_spawn("/bin/sh", ["sh", "-c", "kill -TERM $$"], os.environ)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
child = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 4"], os.environ)
print(os.waitid(os.P_PID, child, os.WEXITED).si_status)

with tempfile.NamedTemporaryFile() as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    script = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    refused = subprocess.run([sys.executable, "-c", script, file.name], capture_output=True)
    print(refused.returncode, b"BlockingIOError" in refused.stderr)
    waiting = subprocess.Popen([sys.executable, "-c", script.replace(" | fcntl.LOCK_NB", ""), file.name])
    fcntl.flock(file, fcntl.LOCK_UN)
    print(waiting.wait(60))
    fcntl.lockf(file, fcntl.LOCK_EX)
    fcntl.lockf(file, fcntl.LOCK_UN)


def square(number):
    return number * number


def exchange(numbers, answers, lock, sum):
    while (number := numbers.get()) is not None:
        with lock:
            sum.value += number
        answers.put(number)


context = multiprocessing.get_context("fork")
with context.Pool(3) as pool:
    print(sum(pool.map(square, range(500))))
numbers, answers, lock, total = context.Queue(), context.Queue(), context.Lock(), context.Value("i", 0)
children = [context.Process(target=exchange, args=(numbers, answers, lock, total)) for _ in range(3)]
for child in children:
    child.start()
for number in range(200):
    numbers.put(number)
for _ in children:
    numbers.put(None)
print(sum(answers.get(timeout=60) for _ in range(200)))
for child in children:
    child.join()
print(total.value, [child.exitcode for child in children])
