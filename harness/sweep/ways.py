"""The choice among the ways of an offer: the fastest way that is right, by a few runs of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from harness.contenders.base import NotRunnable, Offer, Prepared
from harness.stopwatch import timing

TUNING_RUNS = 3  # for each way


def settled(
    offer: Offer,
    limit: int,
    device: torch.device,
    is_right: Callable[[Prepared], bool],
    after_error: Callable[[Exception], None],
) -> Offer:
    """The offer with one way: the fastest right way within the limit, or else the fastest right way over it.

    limit: of the workspace, in bytes. A way that cannot run is left out; after_error
    is told of any other error than NotRunnable and TooSlow. Where no way is right the fastest is kept, and
    where none runs `offer.prepare`, so that measuring it says why.
    """
    if not offer.others:
        return offer
    found: list[tuple[bool, float, Callable[[], Prepared]]] = []
    for way in offer.ways:
        try:
            prepared = way()
            prepared.call()
            us = min(timing.measure(prepared.call, TUNING_RUNS, device).runs_us)
        except (NotRunnable, timing.TooSlow):
            continue
        except Exception as error:
            after_error(error)
            continue
        found.append((prepared.workspace_bytes > limit, us, way))
    ordered = [way for *_, way in sorted(found, key=lambda one: one[:2])]
    chosen = next((way for way in ordered if is_right(way())), (ordered or [offer.prepare])[0])
    return replace(offer, prepare=chosen, others=())
