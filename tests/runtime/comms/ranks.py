"""Ranks of a group as threads, over shared memory or over messages, for tests without torch."""

from __future__ import annotations

import queue
import threading

import numpy as np

from spyre.runtime.comms import Communicator, Deadline, MessageTransport, join_processes


class ThreadStore:
    """A store as torch.distributed's, for threads."""

    def __init__(self):
        self._values = {}
        self._changed = threading.Condition()

    def set(self, key, value):
        with self._changed:
            self._values[key] = value.encode()
            self._changed.notify_all()

    def get(self, key):
        with self._changed:
            assert self._changed.wait_for(lambda: key in self._values, 10), f"nobody sets {key}"
            return self._values[key]

    def check(self, keys):
        with self._changed:
            return all(key in self._values for key in keys)


class Sending:
    """A message that is read where it is when it is taken, as late as can be."""

    def __init__(self, content):
        self.content, self.taken = content, threading.Event()

    def wait(self, seconds):
        return self.taken.wait(max(seconds, 1e-3))


class Receiving:
    def __init__(self, mailbox, content):
        self._mailbox, self._content, self._done = mailbox, content, False

    def wait(self, seconds):
        if not self._done:
            try:
                message = self._mailbox.get(timeout=max(seconds, 1e-3))
            except queue.Empty:
                return False
            if message is None:
                raise RuntimeError("Connection closed by peer")
            assert message.content.size == self._content.size
            self._content[:] = message.content
            message.taken.set()
            self._done = True
        return True


class Mailboxes:
    """Messages between threads, as MessageTransport takes them."""

    def __init__(self, rank, boxes):
        self._rank, self._boxes = rank, boxes

    @classmethod
    def network(cls, size):
        boxes, lock = {}, threading.Lock()

        def box(key):
            with lock:
                return boxes.setdefault(key, queue.SimpleQueue())

        return [cls(rank, box) for rank in range(size)]

    def send(self, content, rank, tag):
        message = Sending(content)
        self._boxes((self._rank, rank, tag)).put(message)
        return message.wait

    def receive(self, content, rank, tag):
        return Receiving(self._boxes((rank, self._rank, tag)), content).wait

    def close(self):
        pass


def transports(kind, size):
    """A function of the rank that joins the group and returns its transport."""
    if kind == "threads":
        store = ThreadStore()
        return lambda rank: join_processes(store, rank, size)
    network = Mailboxes.network(size)
    return lambda rank: MessageTransport(network[rank], rank, size)


def run_ranks(size, body, kind="threads", algorithm="RankOrder"):
    """Run ``body(communicator)`` on every rank; return results or exceptions by rank."""
    join, results = transports(kind, size), [None] * size

    def rank_body(rank):
        communicator = Communicator(join(rank), algorithm)
        communicator.deadline = Deadline.after(20)
        try:
            results[rank] = body(communicator)
        except Exception as error:
            results[rank] = error
        finally:
            communicator.close()

    threads = [threading.Thread(target=rank_body, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a rank hangs"
    return results


def raised(results):
    """The results, once none of them is an error."""
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def one_row(array):
    return np.ascontiguousarray(array).view(np.uint8).reshape(1, -1)
