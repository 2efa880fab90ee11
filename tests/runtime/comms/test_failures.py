"""Ranks that differ, fail, end or do not come: an error on all others, in time, naming them."""

from __future__ import annotations

import contextlib
import glob
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from spyre.hw.device import Combiner
from spyre.hw.numerics import Numerics
from spyre.runtime.comms import (
    CollectiveError,
    Communicator,
    Deadline,
    MessageTransport,
    agree_on_name,
)
from spyre.runtime.comms.memory import join_processes, started_at
from spyre.runtime.comms.transport import Outbox, check_size
from tests.runtime.comms.ranks import Mailboxes, ThreadStore, one_row, raised, run_ranks

KINDS = ["threads", "messages"]


def failures(results):
    assert all(isinstance(result, CollectiveError) for result in results), results
    return [str(result) for result in results]


@pytest.mark.parametrize("kind", KINDS)
def test_different_operations_fail_on_all_ranks(kind):
    def body(communicator):
        if communicator.rank == 0:
            communicator.barrier("")
        else:
            communicator.broadcast(np.zeros((1, 8), np.uint8), 0, "int8 8")

    first, second = failures(run_ranks(2, body, kind))
    assert "SPY952" in first
    assert "barrier" in first
    assert "broadcast from 0" in first
    assert "SPY952" in second


@pytest.mark.parametrize("kind", KINDS)
def test_headers_are_compared_on_all_ranks_before_anything_is_sent(kind):
    """Ranks 1 and 2 would fit, and the difference is where a header is too long for its page."""

    def body(communicator):
        part = np.full((1, 128), communicator.rank, np.uint8)
        detail = "float16 " + "[3, 5], " * 60 + f"[{min(communicator.rank, 1)}]"
        try:
            communicator.broadcast(part, 1, detail)
        except CollectiveError as error:
            assert (part == communicator.rank).all()
            return str(error)

    for text in run_ranks(3, body, kind):
        assert "SPY952" in text or (kind == "threads" and "SPY957" in text)
        assert "operation 1 of the group" in text


@pytest.mark.parametrize("kind", KINDS)
def test_empty_tensors_meet_the_other_ranks(kind):
    def body(communicator):
        empty = np.empty(0, np.uint8)
        combiner = Combiner("sum", "float32", Numerics())
        communicator.all_reduce(empty, combiner, "float32 [0]")
        communicator.reduce(empty, 0, combiner, "float32 [0]")
        if communicator.rank == 0:
            communicator.barrier("")
        else:
            communicator.all_reduce(empty, combiner, "float32 [0]")

    for text in failures(run_ranks(2, body, kind)):
        assert "SPY952" in text or "SPY957" in text


@pytest.mark.parametrize("kind", KINDS)
def test_different_sizes_fail_and_name_both(kind):
    def body(communicator):
        own = np.zeros((1, 128 * (1 + communicator.rank)), np.uint8)
        outs = [np.zeros_like(own) for _ in range(2)]
        communicator.all_gather(outs, own, "")

    text = failures(run_ranks(2, body, kind))[0]
    assert "128 bytes" in text
    assert "256 bytes" in text


@pytest.mark.parametrize("kind", KINDS)
def test_an_absent_rank_is_missed_at_the_deadline(kind):
    def body(communicator):
        if communicator.rank == 1:
            return 0.2
        start = time.monotonic()
        communicator.deadline = Deadline.after(0.2)
        with pytest.raises(CollectiveError, match=r"SPY955[\s\S]*rank 1"):
            communicator.barrier("")
        return time.monotonic() - start

    assert raised(run_ranks(2, body, kind))[0] == pytest.approx(0.2, abs=0.3)


def test_a_rank_that_fails_ends_the_others_long_before_the_deadline():
    def body(communicator):
        start = time.monotonic()
        if communicator.rank == 1:
            communicator.fail(CollectiveError("SPY957", "the third operand is missing"))
        else:
            with pytest.raises(CollectiveError, match=r"SPY957[\s\S]*operand is missing"):
                communicator.barrier("")
        with pytest.raises(CollectiveError, match="SPY956"):
            communicator.barrier("")
        return time.monotonic() - start

    assert max(raised(run_ranks(3, body))) < 5


def test_a_rank_that_closes_first_is_still_read():
    store = ThreadStore()

    def giver():
        transport = join_processes(store, 0, 2)
        with transport.round("give", [Outbox((8,), (1,))], Deadline.after(5)) as current:
            current.piece(0, 0)[:] = 7
            current.commit(0)
        transport.close()

    thread = threading.Thread(target=giver)
    thread.start()
    transport = join_processes(store, 1, 2)
    with transport.round("give", [], Deadline.after(5)) as current:
        # the giver is done with its round meanwhile, and leaves
        thread.join(0.2)
        assert (current.read(0, 0, 0, (8,)) == 7).all()
    thread.join()
    transport.close()


class HastyMailboxes(Mailboxes):
    """A connection that, when closed, drops messages that were sent but not received."""

    def __init__(self, rank, boxes):
        super().__init__(rank, boxes)
        self._sent = set()

    def send(self, content, rank, tag):
        self._sent.add((self._rank, rank, tag))
        return super().send(content, rank, tag)

    def close(self):
        for key in self._sent:
            mailbox = self._boxes(key)
            with contextlib.suppress(queue.Empty):
                while True:
                    mailbox.get_nowait()
            mailbox.put(None)


def test_a_rank_that_leaves_first_breaks_no_connection_that_is_read():
    giver, taker = (
        MessageTransport(messages, rank, 2)
        for rank, messages in enumerate(HastyMailboxes.network(2))
    )

    def give():
        with giver.round("give", [Outbox((8,), (1,))], Deadline.after(5)) as current:
            current.piece(0, 0)[:] = 7
            current.commit(0)
        giver.close()

    thread = threading.Thread(target=give)
    thread.start()
    with taker.round("give", [], Deadline.after(5)) as current:
        thread.join(0.2)
        assert (current.read(0, 0, 0, (8,)) == 7).all()
    taker.close()
    thread.join()


@pytest.mark.parametrize("method", ["send", "receive"])
def test_a_connection_that_has_ended_may_refuse_at_once(method):
    class Broken(Mailboxes):
        pass

    def refuse(self, content, rank, tag):
        raise RuntimeError("Connection closed by peer")

    setattr(Broken, method, refuse)
    transport = MessageTransport(Broken.network(2)[0], 0, 2)
    with (
        pytest.raises(CollectiveError, match=r"SPY954[\s\S]*rank 1"),
        transport.round("give (operation 1 of the group)", [], Deadline.after(5)),
    ):
        pass
    transport.close(0.1)


def test_memory_of_a_process_that_ended_is_no_error_of_its_own_kind():
    store, transports = ThreadStore(), {}

    def join(rank):
        transports[rank] = join_processes(store, rank, 2)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    def give():
        with transports[0].round("give", [Outbox((8,), (1,))], Deadline.after(5)) as current:
            current.piece(0, 0)[:] = 7
            current.commit(0)
            os.close(transports[0]._memory._arena_fd)  # as the end of its process does
            closed.set()

    def read_late(transport):
        closed.wait(5)
        transport.read(0, 0, 0, (8,))

    closed = threading.Event()
    giver = threading.Thread(target=give)
    giver.start()
    with (
        pytest.raises(CollectiveError, match=r"SPY954[\s\S]*rank 0"),
        transports[1].round("give", [], Deadline.after(5)) as other,
    ):
        read_late(other)
    giver.join()


@pytest.mark.parametrize(
    ("state", "flags", "lives"), [("S", 0, True), ("R", 4194304, True), ("Z", 0, False),
                                  ("D", 4194304 | 4, False)]
)  # fmt: skip
def test_a_process_has_ended_once_it_gives_its_memory_back(state, flags, lives):
    stat = f"71 (a (b) c) {state} 1 71 71 0 -1 {flags} {'0 ' * 12}4711 0 0"
    assert started_at(stat) == (4711 if lives else None)


# --- names of groups ------------------------------------------------------------------------------


def names(store, size, order, timeout=20.0):
    """The name that each rank gets, in the order they come, or the text of its error."""
    found = {}

    def join(rank):
        try:
            found[rank] = agree_on_name(store, rank, size, timeout)
        except CollectiveError as error:
            found[rank] = str(error)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in order]
    for thread in threads:
        thread.start()
        time.sleep(0.02)
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a rank hangs"
    return found


def test_ranks_agree_on_a_new_name_with_the_store_of_ranks_that_have_ended():
    store, seen = ThreadStore(), set()
    for order in [(0, 1, 2), (2, 1, 0), (1, 0, 2)]:
        # of an earlier start, which some ranks did not reach
        absent = names(store, 3, order[:2], timeout=0.1)
        assert any("SPY955" in text for text in absent.values()), absent
        found = names(store, 3, order)
        assert len(found) == 3
        assert len(set(found.values())) == 1, found
        seen |= set(found.values())
    assert len(seen) == 3


def test_an_absent_rank_is_named():
    found = names(ThreadStore(), 3, (0, 1), timeout=0.1)
    assert "no answer from rank 2 within 0.1 s" in found[0]
    found = names(ThreadStore(), 2, (1,), timeout=0.1)
    assert "no answer from rank 0 within 0.1 s" in found[1]


# --- processes --------------------------------------------------------------------------------


class DirectoryStore:
    """A store as torch.distributed's, in a directory."""

    def __init__(self, path):
        self._path = Path(path)

    def set(self, key, value):
        target = self._path / key.replace("/", "_")
        scratch = target.with_suffix(f".{os.getpid()}")
        scratch.write_bytes(value.encode())
        scratch.rename(target)

    def get(self, key):
        # two interpreters begin meanwhile, on a machine that others use
        target, last = self._path / key.replace("/", "_"), time.monotonic() + 100
        while not target.exists():
            assert time.monotonic() < last, f"nobody sets {key}"
            time.sleep(0.002)
        return target.read_bytes()


def shared_files():
    """Files of memory that this process has open, or mapped, to share it."""
    opened = {os.path.realpath(file) for file in glob.glob("/proc/self/fd/*")}
    mapped = {line.rpartition("  ")[2] for line in Path("/proc/self/maps").read_text().splitlines()}
    return {f.split()[0] for f in opened | mapped if f.startswith(("/memfd:", "/dev/shm"))}


def main(directory, rank, size, work):
    """Run a rank's process; print the code of a CollectiveError and exit with 3."""
    transport = join_processes(DirectoryStore(directory), rank, size)
    assert transport is not None
    communicator = Communicator(transport)
    combiner = Combiner("sum", "float32", Numerics())
    try:
        for number in range(4 if work == "sum" else 1_000_000):
            run = np.full(100_000 // 128 * 32, rank + number, np.float32)
            communicator.deadline = Deadline.after(20 if number < 4 else 2)
            communicator.all_reduce(run.view(np.uint8), combiner, "")
            assert (run == sum(range(size)) + size * number).all()
            if number == 3:
                print("under way", flush=True)
        outs = [np.zeros((1, 8), np.uint8) for _ in range(size)]
        communicator.deadline = Deadline.after(20)
        communicator.all_gather(outs, one_row(np.int64(rank)), "")
        assert [int(out.view(np.int64)[0, 0]) for out in outs] == list(range(size))
        # memory without a name in a file system is freed when the processes end
        assert shared_files() == {"/memfd:spyreccl"}
    except CollectiveError as error:
        print(error.code, flush=True)
        sys.exit(3)
    finally:
        communicator.close()


@pytest.fixture
def start_ranks(tmp_path):
    started = []

    def start(size, work):
        for rank in range(size):
            command = (
                f"from {__name__} import main; main({str(tmp_path)!r}, {rank}, {size}, {work!r})"
            )
            started.append(
                subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE, text=True)
            )
        return started

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_processes_share_memory_and_leave_nothing(start_ranks):
    processes = start_ranks(2, "sum")
    assert [process.wait(200) for process in processes] == [0, 0]


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGKILL, "SPY954"), (signal.SIGSTOP, "SPY955")])
def test_a_killed_or_stopped_process_ends_the_others(start_ranks, sign, code):
    killed, *others = start_ranks(3, "endless")
    for process in (killed, *others):
        assert process.stdout.readline() == "under way\n"
    killed.send_signal(sign)
    assert [process.wait(60) for process in others] == [3, 3]
    codes = {process.stdout.read().strip() for process in others}
    # the first one to notice tells the other
    assert codes <= {code, "SPY957"}
    assert code in codes


def test_a_group_has_at_most_64_ranks():
    check_size(64)
    with pytest.raises(CollectiveError, match=r"SPY959(.|\n)*at most 64(.|\n)*65"):
        check_size(65)
