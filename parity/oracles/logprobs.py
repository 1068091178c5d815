"""Oracles of the logprobs family."""

import torch

from parity.oracles.oracle import Arrays, Oracle, wide


def _log_softmax(a: Arrays) -> Arrays:
    return {"out": torch.log_softmax(wide(a["logits"]), -1).numpy()}


def _top_logprobs(a: Arrays) -> Arrays:
    logits, token_ids = wide(a["logits"]), wide(a["token_ids"])[:, None]
    logprobs = torch.log_softmax(logits, -1)
    order = torch.sort(logits, descending=True, stable=True).indices
    top_ids = order[:, : a["num_top"]]
    ranks = torch.nonzero(order == token_ids)[:, 1] + 1
    return {
        "out0": top_ids.numpy(),
        "out1": logprobs.gather(1, top_ids).numpy(),
        "out2": logprobs.gather(1, token_ids)[:, 0].numpy(),
        "out3": ranks.numpy(),
    }


ORACLES = {
    "log_softmax": Oracle("torch.log_softmax", _log_softmax),
    "top_logprobs": Oracle("torch.log_softmax, torch.sort, torch.gather", _top_logprobs),
}
