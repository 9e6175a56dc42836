"""redis-py's lock, told what to do line by line. `child.rs` says what each line means."""

import sys
import threading
import time

import redis

# As its documentation has it: one client, whose connections all threads share. It is asked for no
# lease by default; this one is that of the others.
client = redis.Redis(port=int(sys.argv[1]), max_connections=1000)
LEASE = 30
speaking = threading.Lock()


def say(line):
    with speaking:
        print(line, flush=True)


def start(count, work):
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    return threads


def alone(tasks, millis, name):
    begin = time.monotonic_ns()
    end = begin + millis * 1_000_000
    counts = [0] * tasks

    def work(i):
        lock = client.lock(f"{name}:{i}", timeout=LEASE)
        while time.monotonic_ns() < end:
            lock.acquire()
            lock.release()
            counts[i] += 1

    for thread in start(tasks, work):
        thread.join()
    say(f"{sum(counts)} {time.monotonic_ns() - begin}")


def wait(tasks, name):
    times = []

    def work(_):
        lock = client.lock(name, timeout=LEASE)
        lock.acquire()
        granted = time.monotonic_ns()
        called = time.monotonic_ns()
        lock.release()
        times.append((granted, called))

    threads = start(tasks, work)
    say("waiting")

    def tell():
        for thread in threads:
            thread.join()
        for granted, called in times:
            say(f"{granted} {called}")
        say("done")

    threading.Thread(target=tell).start()


client.ping()
say("ready")
held = None
for line in sys.stdin:
    words = line.split()
    if words[0] == "alone":
        alone(int(words[1]), int(words[2]), words[3])
    elif words[0] == "hold":
        held = client.lock(words[1], timeout=LEASE)
        held.acquire()
        say("held")
    elif words[0] == "wait":
        wait(int(words[1]), words[2])
    elif words[0] == "let-go":
        called = time.monotonic_ns()
        held.release()
        say(str(called))
