"""send and recv: matched by tag in any order, and checked."""

from __future__ import annotations

import random

import pytest
import torch
import torch.distributed as dist

from tests.torch_backend.distributed.ranks import run_ranks


def filled(value, size=70):
    return torch.full((size,), float(value), device="spyre")


def empty(size=70):
    return torch.empty(size, device="spyre")


def test_messages_are_matched_by_tag_in_any_order():
    def body(rank):
        peer = 1 - rank
        sent = [dist.isend(filled(10 * rank + tag), peer, tag=tag) for tag in range(4)]
        outs = {tag: empty() for tag in (3, 1, 0, 2)}
        for tag, out in outs.items():
            dist.recv(out, peer, tag=tag)
        for work in sent:
            work.wait()
        return {tag: out[0].item() for tag, out in outs.items()}

    assert run_ranks(2, body) == [
        {tag: 10.0 * peer + tag for tag in (3, 1, 0, 2)} for peer in (1, 0)
    ]


def test_receives_wait_in_another_order_than_messages_come():
    def body(rank):
        if rank == 0:
            outs = [empty() for _ in range(3)]
            works = [dist.irecv(out, 1, tag=tag) for tag, out in enumerate(outs)]
            for tag in (2, 0, 1):
                works[tag].wait()
                # rank 1 sends the next one only now
                dist.send(filled(tag), 1, tag=9)
            return [out[0].item() for out in outs]
        for tag in (2, 0, 1):
            dist.send(filled(tag), 0, tag=tag)
            dist.recv(empty(), 0, tag=9)

    assert run_ranks(2, body)[0] == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("seed", range(3))
def test_messages_between_all_ranks_in_random_order(seed):
    """Several with one tag keep their order."""

    def value(source, target, tag, number):
        return 1000 * source + 100 * target + 10 * tag + number

    def body(rank):
        others = [k for k in range(3) if k != rank]
        posts = [(peer, tag, is_sent) for peer in others for tag in range(3) for is_sent in (0, 1)]
        random.Random(10 * seed + rank).shuffle(posts)
        works, outs = [], {}
        for peer, tag, is_sent in posts:
            for number in range(2):
                size = 5 + 90 * number
                if is_sent:
                    sent = filled(value(rank, peer, tag, number), size)
                    works.append(dist.isend(sent, peer, tag=tag))
                else:
                    outs[peer, tag, number] = empty(size)
                    works.append(dist.irecv(outs[peer, tag, number], peer, tag=tag))
        random.Random(seed - rank).shuffle(works)
        for work in works:
            work.wait()
        return {key: out.cpu() for key, out in outs.items()}

    for rank, outs in enumerate(run_ranks(3, body)):
        for (peer, tag, number), out in outs.items():
            assert (out == value(peer, rank, tag, number)).all()


def test_batches_with_several_peers():
    def body(rank):
        others = [k for k in range(3) if k != rank]
        outs = {peer: empty() for peer in others}
        ops = [dist.P2POp(dist.irecv, outs[peer], peer) for peer in others]
        ops += [dist.P2POp(dist.isend, filled(10 * rank + peer), peer) for peer in others]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return {peer: out[0].item() for peer, out in outs.items()}

    for rank, outs in enumerate(run_ranks(3, body)):
        assert outs == {peer: 10.0 * peer + rank for peer in outs}


def test_messages_from_any_rank_are_refused():
    def body(rank):
        with pytest.raises(dist.DistBackendError, match=r"SPY958[\s\S]*any source"):
            dist.recv(empty())

    run_ranks(2, body)


def test_a_message_that_does_not_fit_is_refused_and_the_next_one_arrives():
    def body(rank):
        if rank == 0:
            for size in (700, 3, 70):
                dist.send(filled(size, size), 1)
            dist.send(filled(1).to(torch.float16), 1)
            dist.send(torch.empty(0, device="spyre"), 1)
            dist.send(filled(5), 1)
            return None
        texts, out = [], empty()
        for fits in (False, False, True, False, False, True):
            if fits:
                dist.recv(out, 0)
                texts.append(out[0].item())
            else:
                with pytest.raises(dist.DistBackendError, match="SPY952") as refused:
                    dist.recv(out, 0)
                texts.append(str(refused.value))
        assert "float32 700 (rank 0)" in texts[0]
        assert "float16 70 (rank 0)" in texts[3]
        return texts[2], texts[5]

    assert run_ranks(2, body)[1] == (70.0, 5.0)


def test_a_message_that_does_not_come_is_an_error_within_the_timeout():
    def body(rank):
        if rank == 0:
            with pytest.raises(dist.DistBackendError, match=r"SPY955[\s\S]*rank 1"):
                dist.recv(empty(), 1)

    run_ranks(2, body, timeout=0.3)
